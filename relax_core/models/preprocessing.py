"""What a model folder says of how images and sound become its input: ``preprocessor_config.json``."""

from collections.abc import Mapping
from typing import Any


def preprocessing_of(config: Any) -> Mapping[str, Any]:
    """The settings of transformers' processors for the towers of a configuration; none for a model of text alone.

    Colours go from −1 to 1, as for Qwen3-VL; sound is Whisper's log-mel of 25 ms every 10 ms.
    """
    settings: dict[str, Any] = {}
    if vision := getattr(config, "vision_config", None):
        settings |= {
            "image_processor_type": "Qwen2VLImageProcessor",
            "patch_size": vision.patch_size,
            "temporal_patch_size": vision.temporal_patch_size,
            "merge_size": vision.spatial_merge_size,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
        }
    if audio := getattr(config, "audio_config", None):
        settings |= {
            "feature_extractor_type": "WhisperFeatureExtractor",
            "feature_size": audio.num_mel_bins,
            "sampling_rate": 16_000,
            "n_fft": 400,
            "hop_length": 160,
        }
    return settings

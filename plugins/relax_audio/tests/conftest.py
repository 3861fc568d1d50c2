"""Encoders for tiny models, and the processors' extractors to compare with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from relax_audio.config import AudioEncoderConfig
from relax_audio.encoder import AudioEncoder
from sounds import Samples
from transformers import WhisperFeatureExtractor

from relax_core.api.context import Context, ModelSource
from relax_core.testing.models import tiny_media_model

MODELS = ("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker")
MELS = 16
CALLS: dict[str, dict[str, Any]] = {
    "qwen2_5_omni_thinker": {"padding": "max_length"},
    "qwen3_omni_moe_thinker": {"padding": True, "truncation": False},
}
"""How each model's processor calls its extractor."""

Make = Callable[..., AudioEncoder]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model of each type."""
    return {name: tiny_media_model(tmp_path_factory.mktemp("model"), name) for name in MODELS}


@pytest.fixture(scope="session")
def make(folders: dict[str, Path]) -> Make:
    """``make(model_type, **settings)``: an encoder."""

    def build(model_type: str = MODELS[1], **settings: Any) -> AudioEncoder:
        folder = folders[model_type]
        return AudioEncoder(AudioEncoderConfig(**settings), Context("test", 0, folder, ModelSource(folder)))

    return build


@pytest.fixture(scope="session", params=MODELS)
def model_type(request: pytest.FixtureRequest) -> str:
    """Each model that hears."""
    return str(request.param)


@pytest.fixture(scope="session")
def reference(model_type: str) -> Callable[[Samples], Samples]:
    """What the model's processor makes of one clip, without the frames that are padding."""
    extractor = WhisperFeatureExtractor(feature_size=MELS)

    def extracted(samples: Samples) -> Samples:
        made = extractor(samples, sampling_rate=16000, return_attention_mask=True, **CALLS[model_type])
        features: Samples = made["input_features"][0][:, made["attention_mask"][0].astype(bool)]
        return features

    return extracted

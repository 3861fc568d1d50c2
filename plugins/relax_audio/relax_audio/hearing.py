"""What a model hears: the spectrogram its audio tower takes, and how many features it makes of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from relax_core.api.context import ModelSource
from relax_core.api.errors import ConfigError
from relax_core.api.model_files import preprocessor_config, tower_config


def _qwen2_5_omni(frames: int, window: int) -> int:
    """``_get_feat_extract_output_lengths`` of transformers' modeling_qwen2_5_omni: a convolution, then a pooling."""
    return ((frames - 1) // 2 - 1) // 2 + 1


def _qwen3_omni(frames: int, window: int) -> int:
    """``_get_feat_extract_output_lengths`` of transformers' modeling_qwen3_omni_moe: three convolutions by chunk."""
    chunks, rest = divmod(frames, 2 * window)
    for _ in range(3):
        rest = (rest - 1) // 2 + 1
    return 13 * chunks + rest


@dataclass(frozen=True)
class _Tower:
    """A kind of audio tower.

    Args:
        places: Features made of so many frames; the second number is the tower's ``n_window``.
        window: That, where the configuration leaves it out.
        pads: Whether the processor lengthens sound with silence to ``chunk_length`` seconds.
    """

    places: Callable[[int, int], int]
    window: int
    pads: bool


_TOWERS: Final[Mapping[str, _Tower]] = {
    "qwen2_5_omni_thinker": _Tower(_qwen2_5_omni, 100, pads=True),
    "qwen3_omni_moe_thinker": _Tower(_qwen3_omni, 50, pads=False),
}


@dataclass(frozen=True)
class Hearing:
    """How a model hears.

    Args:
        model_type: Of the part of the model that reads prompts.
        mels: Mel bands.
        rate: Samples per second.
        hop: Samples from one frame to the next.
        fft: Samples of a frame.
        chunk: Samples to which shorter sound is lengthened by silence; 0: it is not.
        window: The tower's ``n_window``.
    """

    model_type: str
    mels: int
    rate: int
    hop: int
    fft: int
    chunk: int
    window: int

    def frames(self, samples: int) -> int:
        """Frames of so many samples that are no padding; 0 where sound is too short for one."""
        if self.chunk:
            return -(-samples // self.hop)
        return samples // self.hop if samples > self.fft // 2 else 0

    def places(self, samples: int) -> int:
        """Features that the model makes of so many samples."""
        frames = self.frames(samples)
        return max(_TOWERS[self.model_type].places(frames, self.window), 0) if frames else 0


def read_hearing(source: ModelSource | None) -> Hearing:
    """What the folder of a model says; where it says nothing, what its classes in transformers take.

    Raises:
        ConfigError: The model does not hear, or in a way that is not known here.
    """
    if source is None:
        raise ConfigError("encoders: audio needs a model")
    model_type, audio = tower_config(source, "audio", "hear", _TOWERS)
    tower = _TOWERS[model_type]
    processor = preprocessor_config(source, "feature_extractor")
    rate = processor.get("sampling_rate", 16000)
    return Hearing(
        model_type=model_type,
        mels=audio.get("num_mel_bins", 128),
        rate=rate,
        hop=processor.get("hop_length", 160),
        fft=processor.get("n_fft", 400),
        chunk=processor.get("chunk_length", 30) * rate if tower.pads else 0,
        window=audio.get("n_window", tower.window),
    )

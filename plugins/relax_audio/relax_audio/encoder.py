"""The encoder: sound as the log-mel spectrogram that a Qwen-Omni model hears."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from relax_audio.config import AudioEncoderConfig
from relax_audio.hearing import read_hearing
from relax_audio.mel import log_mel
from relax_audio.sound import Limit, count_samples, read_samples
from relax_core.api.context import Context
from relax_core.api.encoder import Encoder
from relax_core.api.errors import ConfigError
from relax_core.api.media import Encoded, Kind, MediaError

if TYPE_CHECKING:
    from torch import Tensor

VERSION = 1
"""Counted up when the same sound becomes other features."""


class AudioEncoder(Encoder):
    """Carries the frames that are no padding, ``features`` float32 ``[mels, frames]``.

    Features are those of transformers' ``WhisperFeatureExtractor`` as the model's processor calls it for a clip alone.

    Raises:
        ConfigError: The model does not hear, or ``max_seconds`` is more than it takes.
    """

    name: ClassVar[str] = "audio"
    kinds: ClassVar[frozenset[Kind]] = frozenset({"audio"})

    def __init__(self, config: AudioEncoderConfig, context: Context) -> None:
        self._config = config
        self._hearing = hearing = read_hearing(context.model)
        if hearing.chunk and config.max_seconds > hearing.chunk / hearing.rate:
            most = f"{hearing.model_type} takes at most {hearing.chunk / hearing.rate:g} seconds"
            raise ConfigError(f"encoders: audio: max_seconds {config.max_seconds:g}: {most}")
        self._limit = Limit(config.max_seconds, config.too_long == "cut")

    @property
    def fingerprint(self) -> str:
        """See :attr:`Encoder.fingerprint`."""
        return json.dumps([self.name, VERSION, self._config.model_dump(mode="json"), asdict(self._hearing)])

    def layout(self, kind: Kind, data: bytes) -> tuple[int | str, ...] | None:
        """See :meth:`Encoder.layout`; ``None`` for what is compressed with losses."""
        samples = count_samples(data, self._hearing.rate, self._limit)
        return None if samples is None else (self._places(samples),)

    def encode(self, kind: Kind, data: bytes) -> Encoded:
        """See :meth:`Encoder.encode`."""
        samples = read_samples(data, self._hearing.rate, self._limit)
        places = self._places(len(samples))
        features = log_mel(samples, self._hearing)[:, : self._hearing.frames(len(samples))]
        return Encoded(kind, self.name, (places,), {"features": features})

    def inputs(self, media: Sequence[Encoded], device: Any) -> Mapping[str, "Tensor"]:
        """``input_features`` ``[media, mels, frames]``, zero behind the end, and ``feature_attention_mask``."""
        import torch

        clips = [torch.from_numpy(medium.arrays["features"]) for medium in media]
        frames = torch.tensor([clip.shape[1] for clip in clips])
        features = torch.zeros(len(clips), self._hearing.mels, int(frames.max()))
        for row, clip in zip(features, clips, strict=True):
            row[:, : clip.shape[1]] = clip
        mask = (torch.arange(features.shape[2]) < frames[:, None]).long()
        return {"input_features": features.to(device), "feature_attention_mask": mask.to(device)}

    def _places(self, samples: int) -> int:
        places = self._hearing.places(samples)
        if not places:
            raise MediaError("empty", f"{samples} samples are too few for one feature")
        return places

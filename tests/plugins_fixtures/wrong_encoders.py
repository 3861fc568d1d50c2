"""A sound encoder of arrays, and one for each classic error."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from relax_core.api.array_file import read_array
from relax_core.api.encoder import Encoder
from relax_core.api.media import Encoded, Kind, MediaError


class Sound(Encoder):
    """One feature of three numbers for each row of an image, and for each started thousand of samples."""

    name = "sound"
    kinds: ClassVar[frozenset[Kind]] = frozenset({"image", "audio"})

    def __init__(self) -> None:
        self.calls = 0

    @property
    def fingerprint(self) -> str:
        return "version 1"

    def layout(self, kind: Kind, data: bytes) -> tuple[int | str, ...] | None:
        return (len(self._features(kind, data)),)

    def encode(self, kind: Kind, data: bytes) -> Encoded:
        self.calls += 1
        features = self._features(kind, data)
        return Encoded(kind, self.name, (len(features),), {"features": features})

    def inputs(self, media: Sequence[Encoded], device: Any) -> Mapping[str, torch.Tensor]:
        inputs = {}
        for kind in self.kinds:
            chosen = [medium.arrays["features"] for medium in media if medium.kind == kind]
            if chosen:
                inputs[kind] = torch.from_numpy(np.concatenate(chosen)).to(device)
        return inputs

    def _features(self, kind: Kind, data: bytes) -> np.ndarray:
        array = read_array(data)
        if array.ndim != (3 if kind == "image" else 1) or not array.size or not np.isfinite(array).all():
            raise MediaError("damaged", f"no {kind}: {array.shape}")
        if kind == "image":
            return array.mean(axis=1, dtype=np.float32).copy()
        padded = np.pad(array.astype(np.float32), (0, -len(array) % 1000)).reshape(-1, 1000)
        return np.stack([padded.mean(axis=1), padded.max(axis=1), padded.min(axis=1)], axis=1)


class NoKinds(Sound):
    kinds = frozenset()


class SomebodyElses(Sound):
    def encode(self, kind: Kind, data: bytes) -> Encoded:
        made = super().encode(kind, data)
        return Encoded(kind, "another", made.layout, made.arrays)


class Augments(Sound):
    """Draws anew at each call."""

    def encode(self, kind: Kind, data: bytes) -> Encoded:
        made = super().encode(kind, data)
        noise = np.random.default_rng().normal(0, 1e-3, made.arrays["features"].shape).astype(np.float32)
        return Encoded(kind, self.name, made.layout, {"features": made.arrays["features"] + noise})


class ForgetsTheSound(Sound):
    def encode(self, kind: Kind, data: bytes) -> Encoded:
        return Encoded(kind, self.name, (1,), {"features": np.zeros((1, 3), np.float32)})

    def layout(self, kind: Kind, data: bytes) -> tuple[int | str, ...] | None:
        self._features(kind, data)
        return None


class CountsBytes(Sound):
    """Guesses from the length of the file."""

    def layout(self, kind: Kind, data: bytes) -> tuple[int | str, ...] | None:
        return (len(data) // 1000 + 1,)


class SplitsRuns(Sound):
    def layout(self, kind: Kind, data: bytes) -> tuple[int | str, ...] | None:
        return self.encode(kind, data).layout

    def encode(self, kind: Kind, data: bytes) -> Encoded:
        made = super().encode(kind, data)
        return Encoded(kind, self.name, (made.places - 1, 1), made.arrays)


class CountsTheEnd(Sound):
    """One placeholder more than there are features."""

    def layout(self, kind: Kind, data: bytes) -> tuple[int | str, ...] | None:
        return self.encode(kind, data).layout

    def encode(self, kind: Kind, data: bytes) -> Encoded:
        made = super().encode(kind, data)
        return Encoded(kind, self.name, (made.places + 1,), made.arrays)


class KeepsFlags(Sound):
    """Puts what is no array among the arrays."""

    def encode(self, kind: Kind, data: bytes) -> Encoded:
        made = super().encode(kind, data)
        return Encoded(kind, self.name, made.layout, {**made.arrays, "rows": made.places})  # type: ignore[dict-item]


class LetsErrorsThrough(Sound):
    def _features(self, kind: Kind, data: bytes) -> np.ndarray:
        try:
            return super()._features(kind, data)
        except MediaError as error:
            raise ValueError(str(error)) from error


class TakesNothing(Sound):
    """Nothing is a medium of one feature."""

    def _features(self, kind: Kind, data: bytes) -> np.ndarray:
        return super()._features(kind, data) if data else np.zeros((1, 3), np.float32)


class HoldsALock(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class SharesABuffer(Sound):
    """All calls write to the same place, and wait for each other in it."""

    def encode(self, kind: Kind, data: bytes) -> Encoded:
        self.features = self._features(kind, data)
        threading.Event().wait(0.01)
        return Encoded(kind, self.name, (len(self.features),), {"features": self.features})


class CentresTheBatch(Sound):
    """What a medium is depends on those beside it."""

    def inputs(self, media: Sequence[Encoded], device: Any) -> Mapping[str, torch.Tensor]:
        return {kind: values - values.mean() for kind, values in super().inputs(media, device).items()}


class OneKindAtATime(Sound):
    def inputs(self, media: Sequence[Encoded], device: Any) -> Mapping[str, torch.Tensor]:
        kind = media[0].kind
        return super().inputs([medium for medium in media if medium.kind == kind], device)


class HalfPrecision(Sound):
    def inputs(self, media: Sequence[Encoded], device: Any) -> Mapping[str, torch.Tensor]:
        return {kind: values.bfloat16() for kind, values in super().inputs(media, device).items()}

"""Images, sound and video: what a task names, and what a model is given of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from relax_core.api.errors import RelaxError

Kind = Literal["image", "audio", "video"]

KINDS: tuple[Kind, ...] = ("image", "audio", "video")


class MediaError(RelaxError):
    """A medium cannot be used: missing, damaged, beyond a limit, or not where its prompt wants it.

    Args:
        reason: Short and constant, for counters: ``missing``, ``damaged``, ``too_long``, ``too_large``, ``empty`` …
        detail: What exactly, for people.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        """Errors cross processes."""
        return type(self), (self.reason, str(self))


@dataclass(frozen=True)
class Medium:
    """One image, sound or video of a task, by where it is.

    Args:
        kind: What it is.
        source: A path; ``archive.tar#member``; a ``data:`` URL, of ``application/x-npy`` for an array; or, where the
            run allows it, an ``https:`` URL.
    """

    kind: Kind
    source: str


@dataclass(frozen=True, eq=False)
class Encoded:
    """A medium as an :class:`relax_core.api.encoder.Encoder` made it, small enough to be carried.

    Args:
        kind: What it is.
        encoder: Name of the encoder, which alone knows what the arrays mean.
        layout: How the medium stands in a prompt: runs of so many placeholders, each between the model's marks that
            begin and end a medium, and text in front of any of them. An image of 64 places is ``(64,)``; a film of two
            pairs of frames that are told the time is ``("<0.5 seconds>", 64, "<1.5 seconds>", 64)``.
        arrays: What there is to know; compact dtypes, shapes of this medium alone.
    """

    kind: Kind
    encoder: str
    layout: tuple[int | str, ...]
    arrays: Mapping[str, npt.NDArray[np.generic]]

    @property
    def places(self) -> int:
        """Placeholders of all runs: as many as the model makes features of it."""
        return places_of(self.layout)

    @cached_property
    def packed(self) -> bytes:
        """It as bytes in the format of safetensors; the same for equal media."""
        about = {"kind": self.kind, "encoder": self.encoder, "layout": self.layout}
        arrays = {name: np.ascontiguousarray(array) for name, array in sorted(self.arrays.items())}
        # One entry: safetensors writes several in any order.
        return save(arrays, {"medium": json.dumps(about)})

    @cached_property
    def key(self) -> str:
        """SHA-256 of :attr:`packed`, under which a transport holds it; equal media have equal keys."""
        return sha256(self.packed).hexdigest()

    def __getstate__(self) -> dict[str, object]:
        """On its way to another process it is there once, and its key, if known, is not worked out again."""
        return {name: value for name, value in vars(self).items() if name != "packed"}

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """The medium behind :attr:`packed`."""
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        about = json.loads(header["__metadata__"]["medium"])
        return cls(about["kind"], about["encoder"], tuple(about["layout"]), load(data))


def places_of(layout: Sequence[int | str]) -> int:
    """Placeholders of all runs of a layout; see :class:`Encoded`."""
    return sum(part for part in layout if isinstance(part, int))


@dataclass(frozen=True)
class Prompt:
    """A prompt as a model reads it.

    Args:
        token_ids: Every medium's placeholders are among them.
        media: In the order in which they occur.
    """

    token_ids: tuple[int, ...]
    media: Sequence[Encoded] = ()

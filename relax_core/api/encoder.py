"""Encoders turn images, sound and video into what a model reads: on the host once, on a device as often as needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from relax_core.api.media import Encoded, Kind

if TYPE_CHECKING:
    from torch import Tensor


class Encoder(ABC):
    """Media of some kinds, for the model of ``context.model``, whose own configuration says how it sees or hears.

    It can be pickled, and called from several threads and processes at once.

    Attributes:
        name: Of the component, as in a configuration; written into each :class:`Encoded`.
        kinds: What it takes.
    """

    name: ClassVar[str]
    kinds: ClassVar[frozenset[Kind]]

    def __init__(self, config: Any, context: Any) -> None: ...

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Changes whenever the same bytes could be encoded otherwise: settings, and what is read of the model."""

    @abstractmethod
    def layout(self, kind: Kind, data: bytes) -> tuple[int | str, ...] | None:
        """:attr:`Encoded.layout` of what :meth:`encode` would return, at the price of reading a header.

        ``None`` where the container does not tell; it is never another one.

        Raises:
            MediaError: As :meth:`encode`, as far as the header tells.
        """

    @abstractmethod
    def encode(self, kind: Kind, data: bytes) -> Encoded:
        """Decodes a file's bytes and makes them what is carried.

        Args:
            kind: One of :attr:`kinds`.
            data: A file as it is on a disk; or the bytes of a ``.npy`` file: an image ``[height, width, 3]`` uint8,
                sound ``[samples]`` or ``[samples, channels]``, float or int16, at the model's own sample rate.

        Raises:
            MediaError: The bytes cannot be decoded, or exceed a limit of the configuration.
        """

    @abstractmethod
    def inputs(self, media: Sequence[Encoded], device: Any) -> Mapping[str, Tensor]:
        """Arguments of the model's ``forward`` for some media together, at least one, in the order of their
        placeholders; floats are float32.

        Args:
            media: All of this encoder, of any of its kinds.
            device: torch device.
        """

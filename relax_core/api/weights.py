"""Publications of weights and the means that carry them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

    from relax_core.api.engine import Engine

    Bucket = Mapping[str, torch.Tensor]
    """Some named tensors of a publication, canonical Hugging Face names, each tensor whole."""
else:
    Bucket = Mapping


@dataclass(frozen=True)
class TensorEntry:
    """Shape, dtype (torch name without prefix) and CRC-32 of the bytes of one published tensor."""

    shape: tuple[int, ...]
    dtype: str
    checksum: int


@dataclass(frozen=True)
class Manifest:
    """What a publication consists of.

    Args:
        version: Counts publications; 0 is the initial model. Never goes back, never repeats.
        tensors: By canonical Hugging Face name. Tied parameters appear under each of their names.
        kind: ``full``: everything. ``adapter`` and ``delta`` build on version ``base``.
        base: Version that an adapter or delta builds on.
    """

    version: int
    tensors: Mapping[str, TensorEntry]
    kind: Literal["full", "adapter", "delta"] = "full"
    base: int | None = None


@dataclass(frozen=True)
class Publication:
    """A manifest and its tensors, split into buckets; a bucket may be consumed once."""

    manifest: Manifest
    buckets: Iterable[Bucket]


@dataclass(frozen=True)
class Acknowledgement:
    """A receiver now computes with ``version``; ``names`` it took over, and how many tensors ``changed`` by it."""

    version: int
    names: frozenset[str]
    changed: int


class WeightSync(ABC):
    """Carries a publication from a trainer to every receiver: all or nothing."""

    def __init__(self, config: Any, context: Any) -> None: ...

    @abstractmethod
    async def send(
        self, publication: Publication, engines: Sequence[Engine], timeout: float
    ) -> Sequence[Acknowledgement]:
        """Pauses, updates and resumes every engine.

        Raises:
            WeightSyncError: A receiver refused or did not answer within ``timeout`` seconds.
        """

    def newest(self) -> Publication | None:
        """What an engine that starts late must take before it serves; ``None`` where the carrier keeps nothing."""
        return None

    async def close(self) -> None:
        """Gives back what the carrier holds."""

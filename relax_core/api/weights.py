"""Publications of weights and the means that carry them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
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
    """Shape, dtype (torch name without prefix) and XXH3 (64 bits) of the bytes of one published tensor."""

    shape: tuple[int, ...]
    dtype: str
    checksum: int


@dataclass(frozen=True)
class Manifest:
    """What a publication consists of.

    Args:
        version: Counts publications; 0 is the initial model. Never goes back, never repeats.
        tensors: By canonical Hugging Face name. Tied parameters appear under each of their names.
        kind: ``full``: everything. ``adapter`` and ``delta`` build on version ``base``; of a ``delta`` the tensors are
            described as they are once it has been applied.
        base: Version that an adapter or delta builds on.
        verify: Whether receivers compare the bytes with the checksums.
    """

    version: int
    tensors: Mapping[str, TensorEntry]
    kind: Literal["full", "adapter", "delta"] = "full"
    base: int | None = None
    verify: bool = True


@dataclass(frozen=True)
class Publication:
    """A manifest and its tensors, split into buckets; a bucket may be consumed once."""

    manifest: Manifest
    buckets: Iterable[Bucket]


class SharedBuckets(Iterable[Bucket]):
    """Buckets that any process which the carrier reaches can iterate; small when pickled. Their tensors hold until the
    next publication is received: an engine that keeps values copies them."""

    @abstractmethod
    def __iter__(self) -> Iterator[Bucket]: ...


@dataclass(frozen=True)
class Acknowledgement:
    """A receiver now computes with ``version``.

    Args:
        version: Of the publication.
        names: Tensors it consists of.
        changed: How many of them have other values than those before.
        pause: Seconds in which the receiver computed no token for it.
    """

    version: int
    names: frozenset[str]
    changed: int
    pause: float = 0.0


class WeightSync(ABC):
    """Carries a publication from a trainer to every receiver: all or nothing."""

    def __init__(self, config: Any, context: Any) -> None: ...

    async def stage(self, publication: Publication) -> Publication:
        """Takes the tensors out of the trainer's memory: once it returns, the trainer may change them.

        Returns:
            What :meth:`send` takes; by default copies in this process.
        """
        copies = [dict(bucket) for bucket in publication.buckets]
        return Publication(publication.manifest, copies)

    @abstractmethod
    async def send(
        self, staged: Publication, engines: Mapping[str, Engine], timeout: float
    ) -> Mapping[str, Acknowledgement]:
        """Brings what :meth:`stage` returned to every engine, by name; they pause at most while they take it over.

        Raises:
            WeightSyncError: A receiver refused or did not answer within ``timeout`` seconds.
        """

    def newest(self) -> Publication | None:
        """What an engine that starts late must take before it serves; ``None`` where the carrier keeps nothing."""
        return None

    async def close(self) -> None:
        """Gives back what the carrier holds, and takes back what is offered to engines of the run that start late,
        whichever object has kept it: a run that was killed could not, and its next sitting does.
        """

"""Memory of one process that others of the same host map by its process id and descriptor.

It has no name in any file system, so nothing is left behind however the process ends.
"""

import json
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch

from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Bucket, Publication, SharedBuckets
from relax_core.checkpoint.files import write_atomically
from relax_core.weights.manifest import from_json, to_json
from relax_core.weights.shared_memory import Place, PlacedBucket, SharedWeights, placed

POPULATE_READ = 22
"""MADV_POPULATE_READ of Linux: maps all pages at once, which costs less than a fault for each few."""

BOOT = Path("/proc/sys/kernel/random/boot_id")
PROCESSES = Path("/proc/self/ns/pid")


class PublisherGone(WeightSyncError):
    """The process that held the memory has ended."""


@dataclass(frozen=True)
class SharedPublication(SharedBuckets):
    """The buckets of a publication where they lie; whoever iterates maps them.

    Args:
        host: See :func:`this_host`.
        process: Id of the process whose memory it is.
        descriptor: Of the memory in that process.
        memory: Number of the memory on the host, never used for another.
        places: Of the tensors, by bucket.
    """

    host: str
    process: int
    descriptor: int
    memory: int
    places: Sequence[PlacedBucket]

    @classmethod
    def of(cls, memory: SharedWeights, places: Sequence[PlacedBucket]) -> Self:
        """Memory of this process."""
        number = os.fstat(memory.descriptor).st_ino
        return cls(this_host(), os.getpid(), memory.descriptor, number, places)

    def __iter__(self) -> Iterator[Bucket]:
        content = self._map()
        for bucket in self.places:
            yield {name: placed(content, place) for name, place in bucket.items()}

    @property
    def is_there(self) -> bool:
        """Whether the process lives and the memory is the one that was meant."""
        try:
            os.close(self._open())
        except PublisherGone:
            return False
        return True

    def _open(self) -> int:
        if self.host != this_host():
            raise WeightSyncError(
                "weight_sync: shm reaches processes of the trainer's host alone, and this is another; use disk"
            )
        try:
            descriptor = os.open(f"/proc/{self.process}/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError) as error:
            raise PublisherGone(f"the process {self.process}, which published the weights, has ended") from error
        except OSError as error:
            raise WeightSyncError(
                f"weight_sync: shm cannot reach the memory of process {self.process}: {error}"
            ) from error
        if os.fstat(descriptor).st_ino != self.memory:
            os.close(descriptor)
            raise PublisherGone(f"the process {self.process} no longer holds this publication")
        return descriptor

    def _map(self) -> torch.Tensor:
        """The memory's bytes. A mapping is kept, since making one costs as much as a copy; that of a process which has
        gone is not, or its memory would never be free."""
        descriptor = self._open()
        try:
            size = os.fstat(descriptor).st_size
            for other in [key for key in _mapped if key[0] != self.process]:
                del _mapped[other]
            content = _mapped.get((self.process, self.memory))
            if content is None or len(content) != size:
                content = _mapped[self.process, self.memory] = _mapping(descriptor, size)
            return content
        finally:
            os.close(descriptor)


_mapped: dict[tuple[int, int], torch.Tensor] = {}
"""By process and memory: what this process has mapped."""


def _mapping(descriptor: int, size: int) -> torch.Tensor:
    """``uint8 [size]``. It is private: a receiver cannot change what others read. What the owner writes later, Linux
    shows in it all the same, but where the receiver has written."""
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    content = mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with suppress(OSError):  # a kernel before 5.14 maps page by page, as they are read
        content.madvise(POPULATE_READ)
    return torch.frombuffer(content, dtype=torch.uint8)


def this_host() -> str:
    """Equal for processes that see each other's process ids."""
    return f"{BOOT.read_text().strip()} {os.readlink(PROCESSES)}"


def write_record(path: Path, publications: Sequence[Publication]) -> None:
    """Says where some publications are, for processes that start later."""
    stored = []
    for publication in publications:
        shared = publication.buckets
        assert isinstance(shared, SharedPublication)
        places = [{name: asdict(place) for name, place in bucket.items()} for bucket in shared.places]
        stored.append({"manifest": to_json(publication.manifest), "buckets": {**vars(shared), "places": places}})
    write_atomically(path, json.dumps(stored))


def read_record(path: Path) -> list[Publication]:
    """The publications of :func:`write_record`; none where there is no record, or its process has ended."""
    if not path.exists():
        return []
    publications = [_publication(stored) for stored in json.loads(path.read_text(encoding="utf-8"))]
    is_there = all(shared.is_there for _, shared in publications)
    return [Publication(from_json(manifest), shared) for manifest, shared in publications] if is_there else []


def _publication(stored: Mapping[str, Any]) -> tuple[Mapping[str, Any], SharedPublication]:
    buckets = stored["buckets"]
    places = [
        {name: Place(place["offset"], tuple(place["shape"]), place["dtype"]) for name, place in bucket.items()}
        for bucket in buckets["places"]
    ]
    return stored["manifest"], SharedPublication(**{**buckets, "places": places})

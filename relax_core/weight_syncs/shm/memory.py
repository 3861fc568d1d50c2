"""Memory of one process that others of the same host map by its process id and descriptor.

It has no name in any file system, so nothing is left behind however the process ends.
"""

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch

from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Bucket, SharedBuckets
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
        """The memory's bytes. A mapping is kept, since making one costs as much as a copy; that of memory which its
        process has given up is not, or the memory would never be free."""
        descriptor = self._open()
        try:
            size = os.fstat(descriptor).st_size
            for former in list(_mapped):
                if not _is_held(*former):
                    _mapped.pop(former, None)
            key = self.process, self.descriptor, self.memory
            content = _mapped.get(key)
            if content is None or len(content) != size:
                content = _mapped[key] = _mapping(descriptor, size)
            return content
        finally:
            os.close(descriptor)

    def place(self) -> dict[str, Any]:
        """As JSON values; see :meth:`at`."""
        return {**vars(self), "places": [{name: asdict(at) for name, at in bucket.items()} for bucket in self.places]}

    @classmethod
    def at(cls, place: Mapping[str, Any]) -> Self:
        """The publication of :meth:`place`."""
        places = [
            {name: Place(at["offset"], tuple(at["shape"]), at["dtype"]) for name, at in bucket.items()}
            for bucket in place["places"]
        ]
        return cls(**{**place, "places": places})


_mapped: dict[tuple[int, int, int], torch.Tensor] = {}
"""By process, descriptor and memory: what this process has mapped."""


def _is_held(process: int, descriptor: int, memory: int) -> bool:
    """Whether a process still has memory under a descriptor."""
    try:
        return os.stat(f"/proc/{process}/fd/{descriptor}").st_ino == memory
    except OSError:  # closed, ended, or the id is now that of somebody else's process
        return False


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

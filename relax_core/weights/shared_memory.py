"""Tensors of a publication in memory that several processes see, without a name that could be left behind."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relax_core.api.weights import Bucket
from relax_core.weights.manifest import dtype_name, place_of

ALIGNMENT = 64
"""Bytes; a cache line, and a multiple of every dtype's size."""


@dataclass(frozen=True)
class Place:
    """Where a tensor lies: ``offset`` in bytes, its shape, its dtype as torch names it without prefix."""

    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def end(self) -> int:
        """Offset of what comes after it."""
        return self.offset + torch.Size(self.shape).numel() * getattr(torch, self.dtype).itemsize


PlacedBucket = dict[str, Place]


def lay_out(bucket: Bucket, start: int = 0) -> tuple[PlacedBucket, int]:
    """Where the tensors of a bucket may lie in a file, those that share memory in one place, and what comes after."""
    places: PlacedBucket = {}
    known: dict[object, Place] = {}
    for name, tensor in bucket.items():
        if place_of(tensor) not in known or not tensor.numel():
            known[place_of(tensor)] = Place(start, tuple(tensor.shape), dtype_name(tensor.dtype))
            start += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        places[name] = known[place_of(tensor)]
    return places, start


def placed(content: Tensor, place: Place) -> Tensor:
    """The tensor at a place of a file's bytes, ``uint8 [n]``."""
    return content[place.offset : place.end].view(getattr(torch, place.dtype)).view(place.shape)


def anonymous_file() -> int:
    """Descriptor of an empty file in memory, gone with its last descriptor and mapping, however processes end."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("relax-weights")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class SharedWeights:
    """One process's view of an anonymous file, which grows with the largest publication and is used again and again.

    Args:
        descriptor: Of the file; closed with this object.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._bytes: Tensor | None = None

    def write(self, buckets: Iterable[Bucket]) -> Sequence[PlacedBucket]:
        """Copies the tensors into the file, over those of the publication before; returns where they are."""
        end = 0
        written = []
        for bucket in buckets:
            places, end = lay_out(bucket, end)
            self._grow(end)
            copied = set()
            for name, place in places.items():
                if place not in copied:
                    self._view(place).copy_(bucket[name].detach())
                    copied.add(place)
            written.append(places)
        return written

    def read(self, written: Sequence[PlacedBucket]) -> Iterator[Bucket]:
        """The buckets, not copied: their values hold until the other process writes again."""
        for places in written:
            yield {name: self._view(place) for name, place in places.items()}

    def close(self) -> None:
        """Gives file and mapping back, as soon as no tensor lies in it any more."""
        self._bytes = None
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _grow(self, size: int) -> None:
        if size > os.fstat(self.descriptor).st_size:
            os.ftruncate(self.descriptor, size)

    def _view(self, place: Place) -> Tensor:
        if self._bytes is None or place.end > len(self._bytes):
            self._map()
        assert self._bytes is not None
        return placed(self._bytes, place)

    def _map(self) -> None:
        if os.fstat(self.descriptor).st_size:
            self._bytes = torch.frombuffer(mmap.mmap(self.descriptor, 0), dtype=torch.uint8)
        else:
            self._bytes = torch.empty(0, dtype=torch.uint8)  # nothing but empty tensors; an empty file has no mapping

"""Columns where they are: arrays in shared memory, which is not used again before the last of them is gone."""

import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgpack
import numpy as np

from relax_core.api.columns import Column, ColumnSpec
from relax_core.transports.memory.packing import columns_in
from relax_core.transports.shm.link import Link


class Pin:
    """Tells that this process is done with an answer, once no array refers to it any more.

    It keeps the connections, too: the server takes a process without any for dead.
    """

    __slots__ = ("_answer", "_link")

    def __init__(self, answer: int, link: Link) -> None:
        self._answer = answer
        self._link = link

    def __del__(self) -> None:
        self._link.done.append(self._answer)


class PinnedBytes(np.ndarray[Any, Any]):
    """The bytes of an arena for one answer. Arrays that are made of it keep it, and it keeps the pin."""

    pin: Pin


class Mappings:
    """Arenas of all processes in this one, each mapped once, read-only.

    Args:
        find: Gives the memory of the arena of that key.
        unused: Arenas that are gone.
    """

    def __init__(self, find: Callable[[int], memoryview], unused: deque[int]) -> None:
        self._find = find
        self._unused = unused
        self._lock = threading.Lock()
        self._mapped: dict[int, memoryview] = {}

    def memory(self, key: int) -> memoryview:
        """The memory of an arena."""
        with self._lock:
            while self._unused:
                self._mapped.pop(self._unused.popleft(), None)
            memory = self._mapped.get(key)
        if memory is None:
            memory = self._find(key).toreadonly()  # not under the lock: each call to the server has its own deadline
            with self._lock:
                memory = self._mapped.setdefault(key, memory)
        return memory


class Views:
    """Makes the columns of one answer.

    Args:
        mappings: Where arenas are found.
        pin: Of the answer.
    """

    def __init__(self, mappings: Mappings, pin: Pin) -> None:
        self._mappings = mappings
        self._pin = pin
        self._arenas: dict[int, PinnedBytes] = {}

    def columns(self, where: Any, specs: Iterable[ColumnSpec]) -> dict[str, Column]:
        """Some of the columns that :meth:`relax_core.transports.shm.references.Packed.where` has told of."""
        key, start, places = where
        return columns_in(self._arena(key), start, specs, msgpack.unpackb(places))

    def bytes_of(self, key: int, start: int, nbytes: int) -> bytes:
        """A copy of some bytes."""
        return self._arena(key)[start : start + nbytes].tobytes()

    def _arena(self, key: int) -> PinnedBytes:
        if key not in self._arenas:
            memory = self._mappings.memory(key)
            arena = self._arenas[key] = PinnedBytes((memory.nbytes,), np.uint8, memory)
            arena.pin = self._pin
        return self._arenas[key]


def mapped(descriptor: int, nbytes: int) -> memoryview:
    """The memory of a file, read-only; closes the descriptor."""
    try:
        return memoryview(mmap.mmap(descriptor, nbytes, prot=mmap.PROT_READ))
    finally:
        os.close(descriptor)

"""Shared memory that one process allocates in and all may read."""

import bisect
import mmap
import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable

from relax_core.transports.memory.packing import ALIGNMENT

ARENA_BYTES = 1 << 26
"""Size of an arena, unless a block needs a larger one. Pages that were never written to take no memory."""


def anonymous_file(nbytes: int) -> int:
    """Descriptor of a file in memory without a name: it is gone with its last descriptor and mapping."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("relax-rows")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, nbytes)
    return descriptor


class OwnArena:
    """An arena that this end allocates in: first fit, and what comes back is joined with its neighbours.

    Args:
        key: Its name, given by the server.
        mapping: Its memory.
    """

    def __init__(self, key: int, mapping: mmap.mmap) -> None:
        self.key = key
        self.mapping = mapping
        self.memory = memoryview(mapping)
        self._starts = [0]
        self._ends = [len(mapping)]
        self._used: dict[int, int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no block is in use."""
        return not self._used

    def allocate(self, size: int) -> int | None:
        """Start of a new block, ``None`` if there is no room."""
        for number, start in enumerate(self._starts):
            end, stop = self._ends[number], start + size
            if stop <= end:
                self._starts[number] = stop
                if stop == end:
                    del self._starts[number], self._ends[number]
                self._used[start] = stop
                return start
        return None

    def free(self, start: int) -> None:
        """Takes a block back."""
        end = self._used.pop(start)
        place = bisect.bisect(self._starts, start)
        if place < len(self._starts) and self._starts[place] == end:
            end = self._ends[place]
            del self._starts[place], self._ends[place]
        if place and self._ends[place - 1] == start:
            self._ends[place - 1] = end
        else:
            self._starts.insert(place, start)
            self._ends.insert(place, end)

    def give_back(self) -> None:
        """Gives the pages of an empty arena back to the system; they are zero when they are next used."""
        if hasattr(mmap, "MADV_REMOVE"):
            self.mapping.madvise(mmap.MADV_REMOVE)


class Allocator:
    """Blocks in arenas of this process, for all of its threads.

    Args:
        register: Tells the server of the file of a new arena; gives the arena's key.
        freed: Blocks that may be used again, by arena and start.
    """

    def __init__(self, register: Callable[[int, int], int], freed: deque[tuple[int, int]]) -> None:
        self._register = register
        self._freed = freed
        self._lock = threading.Lock()
        self._arenas: dict[int, OwnArena] = {}

    def allocate(self, nbytes: int) -> tuple[int, int, memoryview]:
        """Arena and start of a new block, and its memory."""
        size = max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT
        with self._lock:
            while self._freed:
                self._free(*self._freed.popleft())
            for arena in self._arenas.values():
                if (start := arena.allocate(size)) is not None:
                    return arena.key, start, arena.memory[start : start + size]
        arena = self._made(max(ARENA_BYTES, size))  # not under the lock: each call to the server has its own deadline
        start = arena.allocate(size)
        assert start is not None
        with self._lock:
            self._arenas[arena.key] = arena
        return arena.key, start, arena.memory[start : start + size]

    def memory(self, key: int) -> memoryview | None:
        """An arena of this process; ``None`` for one of another."""
        arena = self._arenas.get(key)
        return None if arena is None else arena.memory

    def _free(self, key: int, start: int) -> None:
        """Takes a block back. All but one of the arenas that get empty give their pages back."""
        arena = self._arenas[key]
        arena.free(start)
        if arena.is_empty and any(other.is_empty for other in self._arenas.values() if other is not arena):
            arena.give_back()

    def _made(self, nbytes: int) -> OwnArena:
        """A new arena, which the server knows of."""
        descriptor = anonymous_file(nbytes)
        try:
            mapping = mmap.mmap(descriptor, nbytes)
            return OwnArena(self._register(descriptor, nbytes), mapping)
        finally:
            os.close(descriptor)

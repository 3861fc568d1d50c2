"""Shared memory as the server sees it: it maps none, but knows whose it is and when it may be used again.

A block is in use as long as anybody refers to its :class:`Block`: groups and blobs do, and the ends that have been told
where it is.
"""

import os
from collections.abc import Sequence
from weakref import WeakSet


class End:
    """A process at the other end.

    ``pins`` are the blocks of each answer that it may still be reading; ``freed`` and ``unused`` are blocks of its own,
    by arena and start, and arenas of others that it has not been told of yet; ``pinned`` is the last number of ``pins``
    until the answer is sent.
    """

    def __init__(self) -> None:
        self.connections = 0
        self.arenas: dict[int, Arena] = {}
        self.pins: dict[int, set[Block]] = {}
        self.freed: list[tuple[int, int]] = []
        self.unused: list[int] = []
        self.answers = 0
        self.pinned = 0

    def pin(self, blocks: set["Block"]) -> int:
        """Keeps blocks until the end says that it is done with this answer, whose number is returned."""
        self.answers += 1
        self.pinned = self.answers
        self.pins[self.answers] = blocks
        return self.answers

    def unpin(self, answers: Sequence[int]) -> None:
        """The end is done with these answers."""
        for answer in answers:
            self.pins.pop(answer, None)

    def leave(self) -> None:
        """The process is dead, and with it all that it was reading."""
        self.pins.clear()
        self.arenas.clear()


class Arena:
    """Memory that one end allocates blocks in, and others may map.

    Args:
        key: Its name.
        descriptor: Of its file; closed with this object.
        nbytes: Its size.
        owner: Who allocates in it.
    """

    def __init__(self, key: int, descriptor: int, nbytes: int, owner: End) -> None:
        self.key = key
        self.descriptor = descriptor
        self.nbytes = nbytes
        self.owner = owner
        self.readers: WeakSet[End] = WeakSet()

    def __del__(self) -> None:
        """Nobody can allocate in it any more, and nothing in it is used."""
        os.close(self.descriptor)
        for reader in self.readers:
            reader.unused.append(self.key)


class Block:
    """A stretch of an arena in use."""

    __slots__ = ("arena", "start")

    def __init__(self, arena: Arena, start: int) -> None:
        self.arena = arena
        self.start = start

    def __del__(self) -> None:
        """Its owner may use it again."""
        self.arena.owner.freed.append((self.arena.key, self.start))

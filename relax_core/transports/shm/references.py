"""Groups whose columns are in shared memory, as the server and its ends tell each other of them: plain lists."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgpack
import numpy as np

from relax_core.api.columns import IntArray
from relax_core.transports.memory.group import Group, Piece
from relax_core.transports.memory.schema import E
from relax_core.transports.shm.blocks import Block

S = TypeVar("S")


class Packed(NamedTuple):
    """Where an end has put the columns of one step: all in one block, which is in use as long as this is.

    Args:
        rows: See :class:`relax_core.transports.memory.schema.Entries`, as for the rest.
        block: Has them.
        places: By name a :class:`relax_core.transports.memory.packing.Place` in the block: encoded, as the server
            mostly passes it on.
    """

    rows: Sequence[str]
    shared: Sequence[str]
    lengths: IntArray | None
    nbytes: int
    block: Block
    places: bytes

    def nbytes_of(self, name: str) -> int:
        """See :class:`relax_core.transports.memory.schema.Entries`."""
        nbytes: int = msgpack.unpackb(self.places)[name][1]
        return nbytes

    def where(self) -> list[Any]:
        """Arena, start of the block in it, and the places in the block."""
        return [self.block.arena.key, self.block.start, self.places]


def array_state(array: IntArray | None) -> bytes | None:
    """Integers on their way."""
    return None if array is None else array.tobytes()


def array_of(state: bytes | None) -> IntArray | None:
    """What :func:`array_state` was given, read-only."""
    return None if state is None else _array(state)


def pieces_state(pieces: Iterable[Piece[E]], rows: int, entries: Callable[[E], S]) -> list[list[Any]]:
    """Pieces of a group of so many rows. One that has every row, as most do, names no places."""
    return [
        [
            None if len(piece.places) == rows else np.asarray(piece.places, np.int64).tobytes(),
            array_state(piece.picks),
            *(piece.version, piece.names, entries(piece.entries)),
        ]
        for piece in pieces
    ]


def fill(group: Group[E], told: Iterable[Sequence[Any]], entries: Callable[[Sequence[str], Any], E]) -> None:
    """Adds to a group what :func:`pieces_state` gave, with the entries that ``entries`` makes of names and state."""
    every = range(group.rows)
    for places, picks, version, names, state in told:
        found = every if places is None else _array(places)
        group.add(Piece(found, entries(names, state), names, version, array_of(picks)))


def _array(state: bytes) -> IntArray:
    return np.frombuffer(state, np.int64)


def group_state(group: Group[E], entries: Callable[[E], Any]) -> list[Any]:
    """All of a group but who has been offered it."""
    pieces = pieces_state(group.written(group.cells), group.rows, entries)
    head = [group.key, group.rows, group.closed, array_state(group.lengths), list(group.acked), group.attempts]
    return [*head, pieces]


def group_of(state: Sequence[Any], entries: Callable[[Sequence[str], Any], E]) -> Group[E]:
    """What :func:`group_state` was given."""
    key, rows, closed, lengths, acked, attempts, pieces = state
    group: Group[E] = Group(key)
    group.rows, group.closed = rows, closed
    group.lengths = np.frombuffer(lengths, np.int64).copy()
    group.acked.update(acked)
    group.attempts.update(attempts)
    fill(group, pieces, entries)
    found = group.written(group.cells)
    group.nbytes = sum([piece.entries.nbytes_of(name) for piece in found for name in piece.names])
    return group

"""Groups whose columns are in shared memory, as the server and its ends tell each other of them: plain lists."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from relax_core.api.columns import ColumnSpec, IntArray
from relax_core.transports.memory.group import FIRST, Group, Piece
from relax_core.transports.memory.schema import P
from relax_core.transports.shm.blocks import Block


class Reference(NamedTuple):
    """Where the entries of one column are.

    Args:
        spec: The column's type.
        block: What keeps the memory from being used again.
        nbytes: Bytes of values and offsets.
        place: In the block, as its end tells it: a :class:`relax_core.transports.memory.packing.Place`.
    """

    spec: ColumnSpec
    block: Block
    nbytes: int
    place: Sequence[Any]

    def state(self) -> list[Any]:
        """Arena, start of the block in it, and the place in the block."""
        return [self.block.arena.key, self.block.start, self.place]


def array_state(array: IntArray | None) -> bytes | None:
    """Integers on their way."""
    return None if array is None else array.tobytes()


def array_of(state: bytes | None) -> IntArray | None:
    """What :func:`array_state` was given, read-only."""
    return None if state is None else _array(state)


def cells_state(group: Group[P], names: Iterable[str], state: Callable[[P], list[Any]]) -> list[Any]:
    """The pieces of some columns. A column in one piece mostly has every row: then no places are named."""
    return [
        [
            [version, _places_state(places, len(pieces)), array_state(picks), state(part)]
            for places, part, version, picks in pieces
        ]
        for pieces in [group.cells[name] for name in names]
    ]


def _places_state(places: range | IntArray, pieces: int) -> bytes | None:
    whole = pieces == 1 and places[0] == 0 and places[-1] == len(places) - 1
    return None if whole else np.asarray(places, np.int64).tobytes()


def fill(
    group: Group[P], specs: Sequence[ColumnSpec], cells: Sequence[Any], part: Callable[[ColumnSpec, Any], P]
) -> None:
    """Adds to a group the pieces that :func:`cells_state` was given, each with the part that ``part`` makes of it."""
    every = range(group.rows)
    for spec, told in zip(specs, cells, strict=True):
        whole = FIRST if spec.level == "group" else every
        group.cells[spec.name] = [
            Piece(whole if places is None else _array(places), part(spec, state), version, array_of(picks))
            for version, places, picks, state in told
        ]


def _array(state: bytes) -> IntArray:
    return np.frombuffer(state, np.int64)


def group_state(group: Group[P], state: Callable[[P], list[Any]]) -> list[Any]:
    """All of a group but who has been offered it."""
    names = list(group.cells)
    return [
        *(group.key, group.rows, group.closed, array_state(group.lengths), list(group.acked), dict(group.attempts)),
        *(names, cells_state(group, names, state)),
    ]


def group_of(state: Sequence[Any], specs: dict[str, ColumnSpec], part: Callable[[ColumnSpec, Any], P]) -> Group[P]:
    """What :func:`group_state` was given."""
    key, rows, closed, lengths, acked, attempts, names, cells = state
    group: Group[P] = Group(key)
    group.rows, group.closed = rows, closed
    group.lengths = np.frombuffer(lengths, np.int64).copy()
    group.acked.update(acked)
    group.attempts.update(attempts)
    fill(group, [specs[name] for name in names], cells, part)
    group.nbytes = sum([piece.part.nbytes for pieces in group.cells.values() for piece in pieces])
    return group

"""Groups whose columns are in shared memory, as the server and its ends tell each other of them: plain lists."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from relax_core.api.columns import Column, ColumnSpec, IntArray
from relax_core.transports.memory.group import FIRST, Cells, Group, Piece
from relax_core.transports.memory.packing import Place
from relax_core.transports.memory.schema import P
from relax_core.transports.shm.blocks import Block


class Reference(NamedTuple):
    """Where the entries of one column are.

    Args:
        spec: The column's type.
        block: What keeps the memory from being used again.
        entries: How many there are.
        nbytes: Bytes of values and offsets.
        length: Values along the first axis.
        values: Bytes from the beginning of the arena to the values.
        offsets: The same for the offsets, if it has any.
    """

    spec: ColumnSpec
    block: Block
    entries: int
    nbytes: int
    length: int
    values: int
    offsets: int | None

    def state(self) -> list[Any]:
        """As :func:`column_state`."""
        return [self.block.arena.key, self.block.start, *self[2:]]


def column_state(column: Column, place: Place, arena: int, start: int) -> list[Any]:
    """A column that was packed into the block of an arena that begins at ``start``: arena and start, then the fields of
    a :class:`Reference` after its block.
    """
    offsets = None if place.offsets is None else start + place.offsets
    return [arena, start, len(column), column.nbytes, len(column.values), start + place.values, offsets]


def array_state(array: IntArray | None) -> bytes | None:
    """Integers on their way."""
    return None if array is None else array.tobytes()


def array_of(state: bytes | None) -> IntArray | None:
    """What :func:`array_state` was given, read-only."""
    return None if state is None else np.frombuffer(state, np.int64)


def cells_state(group: Group[P], names: Iterable[str], state: Callable[[P], list[Any]]) -> list[Any]:
    """The pieces of some columns. A column in one piece mostly has every row: then no places are named."""
    return [
        [
            [piece.version, _places_state(piece.places, len(cells.pieces)), array_state(piece.picks), state(piece.part)]
            for piece in cells.pieces
        ]
        for cells in (group.cells[name] for name in names)
    ]


def _places_state(places: range | IntArray, pieces: int) -> bytes | None:
    whole = pieces == 1 and places[0] == 0 and places[-1] == len(places) - 1
    return None if whole else np.asarray(places, np.int64).tobytes()


def fill(
    group: Group[P], specs: Sequence[ColumnSpec], cells: Sequence[Any], part: Callable[[ColumnSpec, Any], P]
) -> None:
    """Adds to a group the pieces that :func:`cells_state` was given, each with the part that ``part`` makes of it."""
    every = range(group.rows)
    for spec, pieces in zip(specs, cells, strict=True):
        group.cells[spec.name] = Cells()
        for version, places, picks, state in pieces:
            where = array_of(places)
            if where is not None:
                piece = Piece(where, part(spec, state), version, array_of(picks))
            else:
                piece = Piece(FIRST if spec.level == "group" else every, part(spec, state), version)
            group.cells[spec.name].add(piece)
            group.nbytes += piece.part.nbytes


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
    return group

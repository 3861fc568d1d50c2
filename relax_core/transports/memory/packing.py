"""Columns in one stretch of memory: the copy that a transport makes of what it is given."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import Column, ColumnSpec, IntArray
from relax_core.transports.memory.schema import Columns

ALIGNMENT = 64
"""Bytes; a cache line, and a multiple of every dtype's size."""

FEW_BYTES = 1 << 14
"""Copying so many twice takes less time than making an array where they belong."""

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]


class Place(NamedTuple):
    """Where a column is in a buffer, and how much of it there is.

    Args:
        entries: How many there are.
        nbytes: Bytes of values and offsets.
        length: Values along the first axis.
        values: Bytes from the beginning of the buffer to the values.
        offsets: The same for the offsets, if it has any.
    """

    entries: int
    nbytes: int
    length: int
    values: int
    offsets: int | None


def layout(columns: Sequence[Column]) -> tuple[list[Place], int]:
    """The place of each of some columns in a buffer, and the buffer's size.

    Per-token columns of one row have the same lengths, so they share one copy of their offsets.
    """
    places, end, lengths = [], 0, None
    for column in columns:
        nbytes, length = column.values.nbytes, len(column.values)
        values, end = end, end + aligned(nbytes)
        if column.offsets is None:
            places.append(Place(length, nbytes, length, values, None))
            continue
        offsets = lengths if column.spec.level == "token" else None
        if offsets is None:
            offsets, end = end, end + aligned(column.offsets.nbytes)
            lengths = offsets if column.spec.level == "token" else lengths
        places.append(Place(len(column.offsets) - 1, nbytes + column.offsets.nbytes, length, values, offsets))
    return places, end


def aligned(nbytes: int) -> int:
    """The next multiple of the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def put(columns: Sequence[Column], places: Sequence[Place], buffer: memoryview) -> None:
    """Copies columns to their places in a buffer of bytes."""
    written = None
    for column, place in zip(columns, places, strict=True):
        _put(column.values, place.values, buffer)
        if column.offsets is not None and place.offsets is not None and place.offsets != written:
            _put(column.offsets, place.offsets, buffer)
            written = place.offsets


def columns_in(
    buffer: Bytes, start: int, specs: Iterable[ColumnSpec], places: Mapping[str, Sequence[Any]]
) -> dict[str, Column]:
    """Columns where they are in a buffer, ``start`` bytes from its beginning; they keep it."""
    borders: dict[int, IntArray] = {}
    columns = {}
    for spec in specs:
        entries, _, length, values, offsets = places[spec.name]
        array: Array = np.ndarray((length, *spec.trailing), spec.dtype, buffer, start + values)
        if offsets is not None and offsets not in borders:  # per-token columns share theirs
            borders[offsets] = np.ndarray((entries + 1,), np.int64, buffer, start + offsets)
        columns[spec.name] = Column(spec, array, None if offsets is None else borders[offsets])
    return columns


def packed(entries: Columns) -> Columns:
    """A copy of some entries in memory that nobody else has, read-only."""
    columns = list(entries.by_name.values())
    places, nbytes = layout(columns)
    memory = np.empty(nbytes, np.uint8)
    put(columns, places, memory.data)
    memory.flags.writeable = False
    by_name = dict(zip(entries.by_name, places, strict=True))
    copies = columns_in(memory, 0, [column.spec for column in columns], by_name)
    return Columns(copies, entries.rows, entries.shared, entries.lengths)


def read_only(column: Column) -> Column:
    """The same column, whose arrays nobody can write to any more."""
    column.values.flags.writeable = False
    if column.offsets is not None:
        column.offsets.flags.writeable = False
    return column


def _put(array: Array, start: int, buffer: memoryview) -> None:
    if array.nbytes <= FEW_BYTES:
        buffer[start : start + array.nbytes] = array.tobytes()
    else:
        np.ndarray(array.shape, array.dtype, buffer, start)[...] = array

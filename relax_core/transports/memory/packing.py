"""Columns in one stretch of memory: the copy that a transport makes of what it is given."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import Column, IntArray
from relax_core.transports.memory.schema import Columns

ALIGNMENT = 64
"""Bytes; a cache line, and a multiple of every dtype's size."""

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


def pack(columns: Sequence[Column], places: Sequence[Place], buffer: Bytes) -> list[tuple[Array, IntArray | None]]:
    """Copies columns to their places in a buffer; returns the values and offsets of each there."""
    written: dict[int, IntArray] = {}
    return [_copy(column, place, buffer, written) for column, place in zip(columns, places, strict=True)]


def packed(entries: Columns) -> Columns:
    """A copy of some entries in memory that nobody else has, read-only."""
    columns = list(entries.by_name.values())
    places, nbytes = layout(columns)
    arrays = pack(columns, places, np.empty(nbytes, np.uint8))
    copies = [read_only(Column(column.spec, *copy)) for column, copy in zip(columns, arrays, strict=True)]
    return Columns(dict(zip(entries.by_name, copies, strict=True)), entries.rows, entries.shared, entries.lengths)


def read_only(column: Column) -> Column:
    """The same column, whose arrays nobody can write to any more."""
    column.values.flags.writeable = False
    if column.offsets is not None:
        column.offsets.flags.writeable = False
    return column


def _copy(column: Column, place: Place, buffer: Bytes, written: dict[int, IntArray]) -> tuple[Array, IntArray | None]:
    values: Array = np.ndarray(column.values.shape, column.values.dtype, buffer, place.values)
    values[...] = column.values
    if column.offsets is None or place.offsets is None:
        return values, None
    if place.offsets not in written:
        written[place.offsets] = np.ndarray(column.offsets.shape, np.int64, buffer, place.offsets)
        written[place.offsets][...] = column.offsets
    return values, written[place.offsets]

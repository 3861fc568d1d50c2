"""Columns in one stretch of memory: the copy that a transport makes of what it is given."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import Column, IntArray
from relax_core.transports.memory.schema import Entries

ALIGNMENT = 64
"""Bytes; a cache line, and a multiple of every dtype's size."""

Bytes = npt.NDArray[np.uint8]


class Place(NamedTuple):
    """Where a column is: bytes from the beginning of its buffer to its values, and to its offsets if it has any."""

    values: int
    offsets: int | None


def packed(entries: Entries[Column], allocate: Callable[[int], Bytes]) -> tuple[Entries[Column], list[Place]]:
    """A copy of some entries in one buffer, and where in it each of ``rows`` and ``shared`` is.

    Per-token columns of one row have the same lengths, so they share one copy of their offsets.

    Args:
        entries: What to copy.
        allocate: Gives a buffer of so many bytes.
    """
    columns = (*entries.rows, *entries.shared)
    places, end, lengths = [], 0, None
    for column in columns:
        values, end = end, _after(end, column.values)
        offsets = None
        if column.offsets is not None and column.spec.level == "token" and lengths is not None:
            offsets = lengths
        elif column.offsets is not None:
            offsets, end = end, _after(end, column.offsets)
            lengths = offsets if column.spec.level == "token" else lengths
        places.append(Place(values, offsets))
    buffer = allocate(end)
    written: dict[int, IntArray] = {}
    copies = [_copy(column, place, buffer, written) for column, place in zip(columns, places, strict=True)]
    rows = len(entries.rows)
    return Entries(tuple(copies[:rows]), tuple(copies[rows:]), entries.lengths), places


def _after(start: int, array: npt.NDArray[Any]) -> int:
    return start + -(-array.nbytes // ALIGNMENT) * ALIGNMENT


def _copy(column: Column, place: Place, buffer: Bytes, written: dict[int, IntArray]) -> Column:
    values: npt.NDArray[Any] = np.ndarray(column.values.shape, column.values.dtype, buffer, place.values)
    values[...] = column.values
    if column.offsets is None or place.offsets is None:
        return Column(column.spec, values)
    if place.offsets not in written:
        written[place.offsets] = np.ndarray(column.offsets.shape, np.int64, buffer, place.offsets)
        written[place.offsets][...] = column.offsets
    return Column(column.spec, values, written[place.offsets])

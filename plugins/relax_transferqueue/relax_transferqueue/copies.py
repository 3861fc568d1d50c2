"""All that a run holds, with its values out of TransferQueue, and back into it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relax_core.transports.memory.blobs import Blobs
from relax_core.transports.memory.group import Group, Piece
from relax_core.transports.memory.index import Held
from relax_core.transports.memory.schema import Columns
from relax_core.transports.memory.tables import picked
from relax_transferqueue.stored import Found, Stored, loaded, without_cells

BLOB = "bytes"
"""The field of a blob's row."""

Array = npt.NDArray[Any]


class Emptied(NamedTuple):
    """What the index is to hold, and the rows of TransferQueue that the values belong into."""

    held: Held[Stored]
    blobs: Blobs[str]
    rows: Mapping[str, Mapping[str, Array]]


def filled(held: Held[Stored], blobs: Blobs[str], found: Found) -> tuple[Held[Columns], Blobs[bytes]]:
    """The same with values; ``found`` has the fields of all rows, by row and field."""
    groups = {key: loaded(group, group.cells, found) for key, group in held.groups.items()}
    copies: Blobs[bytes] = Blobs()
    for key, blob in blobs.held.items():
        copies.put(key, found[blob.data, BLOB].tobytes(), blob.nbytes, blob.holders)
    return Held(groups, held.gone, held.dropped, held.finished), copies


def emptied(held: Held[Columns], blobs: Blobs[bytes], new_row: Callable[[], str]) -> Emptied:
    """The same with values in new rows: of each group one, and more where a column came in several pieces."""
    rows: dict[str, dict[str, Array]] = {}
    groups = {key: _stored(group, rows, new_row) for key, group in held.groups.items()}
    places: Blobs[str] = Blobs()
    for key, blob in blobs.held.items():
        row = new_row()
        rows[row] = {BLOB: np.frombuffer(blob.data, np.uint8)}
        places.put(key, row, blob.nbytes, blob.holders)
    return Emptied(Held(groups, held.gone, held.dropped, held.finished), places, rows)


def _stored(group: Group[Columns], rows: dict[str, dict[str, Array]], new_row: Callable[[], str]) -> Group[Stored]:
    names: list[str] = []
    copied: Group[Stored] = without_cells(group)
    for name, written in group.cells.items():
        for number, piece in enumerate(written):
            if number == len(names):
                names.append(new_row())
            column = picked(piece, name)
            rows.setdefault(names[number], {})[name] = column.values
            copied.add(Piece(piece.places, Stored.of(Columns.of([column]), names[number]), [name], piece.version))
    return copied

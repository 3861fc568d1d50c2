"""Columns that are in TransferQueue, as the index of a run sees them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from relax_core.api.columns import Column, ColumnSpec, IntArray
from relax_core.api.errors import TransportError
from relax_core.transports.memory.group import Group, Piece
from relax_core.transports.memory.schema import Columns

Found = Mapping[tuple[str, str], npt.NDArray[Any]]
"""Values, by row of TransferQueue and field."""


@dataclass(frozen=True)
class Stored:
    """Columns of one step: their values are the fields of their names, in one row of TransferQueue.

    Args:
        rows: See :class:`relax_core.transports.memory.schema.Entries`, as for what follows.
        row: Key of the row.
        specs: By name the column's type.
        sizes: By name the bytes of values and offsets.
        offsets: By name; see :class:`relax_core.api.columns.Column`.
    """

    rows: Sequence[str]
    shared: Sequence[str]
    lengths: IntArray | None
    row: str
    specs: Mapping[str, ColumnSpec]
    sizes: Mapping[str, int]
    offsets: Mapping[str, IntArray | None]

    @classmethod
    def of(cls, entries: Columns, row: str) -> "Stored":
        """Where columns are once their values have been put into ``row``."""
        columns = entries.by_name
        return cls(
            *(entries.rows, entries.shared, entries.lengths, row),
            {name: column.spec for name, column in columns.items()},
            {name: column.nbytes for name, column in columns.items()},
            {name: column.offsets for name, column in columns.items()},
        )

    @property
    def nbytes(self) -> int:
        """See :class:`relax_core.transports.memory.schema.Entries`."""
        return sum(self.sizes.values())

    def nbytes_of(self, name: str) -> int:
        """See :class:`relax_core.transports.memory.schema.Entries`."""
        return self.sizes[name]

    def column(self, name: str, found: Found) -> Column:
        """A column, with its values among the ``found`` ones.

        Raises:
            TransportError: They are not among them.
        """
        if (self.row, name) not in found:
            raise TransportError(f"{name!r} is not in TransferQueue, in row {self.row}: was it restarted?")
        return Column(self.specs[name], found[self.row, name], self.offsets[name])


def rows_of(group: Group[Stored]) -> set[str]:
    """The rows of TransferQueue that a group is in."""
    return {piece.entries.row for piece in group.written(group.cells)}


def fields_of(groups: Iterable[Group[Stored]], names: Iterable[str]) -> dict[str, set[str]]:
    """By row of TransferQueue, which of the named columns of these groups are in it."""
    fields: dict[str, set[str]] = {}
    names = list(names)
    wanted = set(names)
    for group in groups:
        for piece in group.written(names):
            fields.setdefault(piece.entries.row, set()).update(wanted.intersection(piece.names))
    return fields


def without_cells(group: Group[Any]) -> Group[Any]:
    """The same group before anything is written."""
    copied: Group[Any] = group.copy()
    copied.cells = {}
    return copied


def loaded(group: Group[Stored], names: Iterable[str], found: Found) -> Group[Columns]:
    """The same group with those of the named columns that it has, and their values; see :meth:`Stored.column`."""
    copied: Group[Columns] = without_cells(group)
    names = list(names)
    for piece in group.written(names):
        meant = [name for name in piece.names if name in names]
        entries = Columns.of([piece.entries.column(name, found) for name in meant])
        copied.add(Piece(piece.places, entries, meant, piece.version, piece.picks))
    return copied

"""Columns that are in TransferQueue, as the index of a run sees them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from relax_core.api.columns import Column, ColumnSpec, IntArray
from relax_core.api.errors import TransportError
from relax_core.transports.memory.group import Cells, Group, Piece
from relax_core.transports.memory.schema import Entries, P


@dataclass(frozen=True)
class Stored:
    """Entries of one column: their values are the field of the column's name, in one row of TransferQueue.

    Args:
        spec: The column's type.
        row: Key of the row.
        count: Number of entries.
        nbytes: Bytes of values and offsets.
        offsets: See :class:`relax_core.api.columns.Column`.
    """

    spec: ColumnSpec
    row: str
    count: int
    nbytes: int
    offsets: IntArray | None

    @classmethod
    def of(cls, column: Column, row: str) -> "Stored":
        """Where a column is once its values have been put into ``row``."""
        return cls(column.spec, row, len(column), column.nbytes, column.offsets)

    def column(self, found: Mapping[tuple[str, str], npt.NDArray[Any]]) -> Column:
        """The column, with its values among the ``found`` ones, by row and field.

        Raises:
            TransportError: They are not among them.
        """
        if (self.row, self.spec.name) not in found:
            raise TransportError(f"{self.spec.name!r} is not in TransferQueue, in row {self.row}: was it restarted?")
        return Column(self.spec, found[self.row, self.spec.name], self.offsets)

    def __len__(self) -> int:
        return self.count


def stored(entries: Entries[Column], row: str) -> Entries[Stored]:
    """The same entries, with their values in a row of TransferQueue."""
    return Entries(
        tuple([Stored.of(column, row) for column in entries.rows]),
        tuple([Stored.of(column, row) for column in entries.shared]),
        entries.lengths,
    )


def rows_of(group: Group[Stored]) -> set[str]:
    """The rows of TransferQueue that a group is in."""
    return {piece.part.row for pieces in group.cells.values() for piece in pieces}


def fields_of(groups: Iterable[Group[Stored]], names: Iterable[str]) -> dict[str, set[str]]:
    """By row of TransferQueue, which of the named columns of these groups are in it."""
    fields: dict[str, set[str]] = {}
    names = list(names)
    for group in groups:
        for name in names:
            for piece in group.cells.get(name, ()):
                fields.setdefault(piece.part.row, set()).add(name)
    return fields


def with_cells(group: Group[Any], cells: dict[str, Cells[P]]) -> Group[P]:
    """The same group with other cells."""
    copied: Group[P] = Group(group.key)
    vars(copied).update({**vars(group), "cells": cells})
    return copied


def loaded(
    group: Group[Stored], names: Iterable[str], found: Mapping[tuple[str, str], npt.NDArray[Any]]
) -> Group[Column]:
    """The same group with those of the named columns that it has, and their values; see :meth:`Stored.column`."""
    cells: dict[str, Cells[Column]] = {}
    for name in names:
        if name in group.cells:
            cells[name] = [
                Piece(piece.places, piece.part.column(found), piece.version, piece.picks) for piece in group.cells[name]
            ]
    return with_cells(group, cells)

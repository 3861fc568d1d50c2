"""One group's rows, column by column, as they arrive."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from relax_core.api.columns import NO_VERSION, Column, ColumnSpec, IntArray, Table
from relax_core.api.errors import TransportError
from relax_core.transports.memory.schema import Entries

PLACE_BITS = 20
"""A row id is its group's id and, in so many low bits, its place in the group: finding a row needs no index."""

UNKNOWN_LENGTH = -1
FIRST = np.zeros(1, np.int64)
"""The place of a group column's entry."""


class Cells:
    """The entries of one column in one group: parts as they were written, a single one once the group is complete."""

    def __init__(self) -> None:
        self.places: list[IntArray] = []
        self.parts: list[Column] = []
        self.versions: list[IntArray] = []
        self.count = 0

    def add(self, places: IntArray, part: Column, versions: IntArray) -> None:
        """Adds entries for rows that have none yet."""
        self.places.append(places)
        self.parts.append(part)
        self.versions.append(versions)
        self.count += len(places)

    def merge(self) -> None:
        """Joins the parts into one, in the order of the rows."""
        if len(self.parts) > 1:
            places = np.concatenate(self.places)
            order = np.argsort(places)
            self.parts = [Column.concat(self.parts).select(order)]
            self.versions = [np.concatenate(self.versions)[order]]
            self.places = [places[order]]


class Group:
    """Rows of one group.

    ``complete`` names the columns that every row has, once the group is closed; ``offered`` and ``acked`` name the
    consumers that it became ready for and that are done with it; ``attempts`` counts how often each was handed it.
    """

    def __init__(self, key: int) -> None:
        self.key = key
        self.rows = 0
        self.bytes = 0
        self.closed = False
        self.lengths: IntArray = np.empty(0, np.int64)
        self.cells: dict[str, Cells] = {}
        self.complete: set[str] = set()
        self.offered: set[str] = set()
        self.acked: set[str] = set()
        self.attempts: Counter[str] = Counter()

    def append(self, rows: int, entries: Entries, version: int) -> IntArray:
        """Adds rows and returns their ids; ``TransportError`` for a second entry of a group column."""
        self._refuse_shared(entries)
        if self.rows + rows > 1 << PLACE_BITS:
            raise TransportError(f"group {self.key} would have more than {1 << PLACE_BITS} rows")
        places = np.arange(self.rows, self.rows + rows)
        lengths = np.full(rows, UNKNOWN_LENGTH) if entries.lengths is None else entries.lengths
        self.lengths = np.concatenate([self.lengths, lengths])
        self.rows += rows
        self._put(places, entries, version)
        return places + (self.key << PLACE_BITS)

    def unwritten(self, places: IntArray, entries: Entries) -> list[tuple[IntArray, Entries]]:
        """What of some entries is not there yet, column by column."""
        parts = []
        for column in entries.rows:
            cells = self.cells.get(column.spec.name)
            new = np.flatnonzero(~np.isin(places, np.concatenate(cells.places))) if cells else np.arange(len(places))
            if new.size:
                lengths = entries.lengths
                lengths = None if lengths is None or column.spec.level != "token" else lengths[new]
                parts.append((places[new], Entries((column.select(new),), (), lengths)))
        shared = tuple(column for column in entries.shared if column.spec.name not in self.cells)
        return [*parts, (places, Entries((), shared, None))] if shared else parts

    def check_write(self, places: IntArray, entries: Entries) -> None:
        """Raises ``TransportError`` where a later :meth:`write` would break a rule."""
        if places[-1] >= self.rows:
            raise TransportError(f"group {self.key} has {self.rows} rows, no row {places[-1]}")
        self._refuse_shared(entries)
        for column in entries.rows:
            cells = self.cells.get(column.spec.name)
            if cells and (taken := np.intersect1d(places, np.concatenate(cells.places))).size:
                raise TransportError(f"{column.spec.name!r} of row {taken[0]} of group {self.key} is written already")
        if entries.lengths is not None:
            known = self.lengths[places]
            wrong = (known != UNKNOWN_LENGTH) & (known != entries.lengths)
            if wrong.any():
                row = np.flatnonzero(wrong)[0]
                raise TransportError(
                    f"row {places[row]} of group {self.key} has {known[row]} tokens, not {entries.lengths[row]}"
                )

    def write(self, places: IntArray, entries: Entries, version: int) -> None:
        """Adds checked columns to rows at ascending places."""
        if entries.lengths is not None:
            self.lengths[places] = entries.lengths
        self._put(places, entries, version)

    def settle(self, names: Iterable[str]) -> None:
        """Of a closed group: notes which of these columns every row has by now."""
        for name in names:
            cells = self.cells[name]
            if cells.count == (1 if cells.parts[0].spec.level == "group" else self.rows):
                cells.merge()
                self.complete.add(name)

    def _refuse_shared(self, entries: Entries) -> None:
        for column in entries.shared:
            if column.spec.name in self.cells:
                raise TransportError(f"{column.spec.name!r} of group {self.key} is written already")

    def _put(self, places: IntArray, entries: Entries, version: int) -> None:
        versions = np.full(len(places), version)
        for column in entries.rows:
            self._cells(column).add(places, column, versions)
        for column in entries.shared:
            self._cells(column).add(FIRST, column, versions[:1])
        self.bytes += entries.bytes

    def _cells(self, column: Column) -> Cells:
        name = column.spec.name
        if name not in self.cells:
            self.cells[name] = Cells()
        return self.cells[name]


def table_of(groups: Sequence[Group], specs: Sequence[ColumnSpec]) -> Table:
    """All rows of some groups with columns that are complete in each of them; ids ascend if the groups do."""
    counts = [group.rows for group in groups]
    keys = np.repeat(np.array([group.key for group in groups], np.int64), counts)
    places = [np.arange(count) for count in counts]
    ids = (keys << PLACE_BITS) + np.concatenate([np.empty(0, np.int64), *places])
    columns, versions = {}, {}
    for spec in specs:
        cells = [group.cells[spec.name] for group in groups]
        column = Column.concat([cell.parts[0] for cell in cells]) if cells else Column.of(spec, [])
        version = np.concatenate([np.empty(0, np.int64), *(cell.versions[0] for cell in cells)])
        if spec.level == "group":
            spread = np.repeat(np.arange(len(groups)), counts)
            column, version = column.select(spread), version[spread]
        columns[spec.name] = column
        if (version != NO_VERSION).any():
            versions[spec.name] = version
    return Table(ids, keys, columns, versions)

"""The door: nothing enters that does not have the declared type."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np

from relax_core.api.columns import Column, ColumnSpec, IntArray
from relax_core.api.errors import TransportError


@dataclass(frozen=True)
class Entries:
    """Columns that passed the door.

    Args:
        rows: Columns with one entry per row.
        shared: Group columns, with one entry per group.
        lengths: int64 ``[n]`` tokens of each row; ``None`` without a per-token column.
    """

    rows: tuple[Column, ...]
    shared: tuple[Column, ...]
    lengths: IntArray | None

    @property
    def bytes(self) -> int:
        """Bytes of values and offsets."""
        return sum(map(column_bytes, (*self.rows, *self.shared)))

    def cut(self, start: int, stop: int, group: int) -> "Entries":
        """A copy of one group's entries: its rows from ``start`` to before ``stop``, its place among the groups."""
        return Entries(
            tuple([cut(column, start, stop) for column in self.rows]),
            tuple([cut(column, group, group + 1) for column in self.shared]),
            None if self.lengths is None else self.lengths[start:stop],
        )

    def reorder(self, order: IntArray) -> "Entries":
        """The same rows in another order; group columns stay."""
        if (order[1:] > order[:-1]).all():
            return self
        rows = tuple(column.select(order) for column in self.rows)
        return Entries(rows, self.shared, None if self.lengths is None else self.lengths[order])


class Schema:
    """The declared columns of a run."""

    def __init__(self, columns: Sequence[ColumnSpec]) -> None:
        self.specs = {spec.name: spec for spec in columns}
        self._dtypes = {spec.name: np.dtype(spec.dtype) for spec in columns}
        if len(self.specs) != len(columns):
            raise TransportError(f"a column is declared twice among {sorted(spec.name for spec in columns)}")

    def spec(self, name: str) -> ColumnSpec:
        """The declared type of a column; ``TransportError`` for an unknown one."""
        if name not in self.specs:
            near = get_close_matches(name, self.specs, 1) or sorted(self.specs)
            raise TransportError(f"unknown column {name!r}; declared is {', '.join(map(repr, near)) or 'nothing'}")
        return self.specs[name]

    def check(self, columns: Sequence[Column], rows: int, groups: int) -> Entries:
        """Sorts columns by level once each has its type and the expected number of entries.

        Args:
            columns: What a role hands in.
            rows: Entries that per-token and per-row columns must have.
            groups: Entries that group columns must have.

        Raises:
            TransportError: Names the column and what is wrong with it.
        """
        if len({column.spec.name for column in columns}) < len(columns):
            raise TransportError(f"a column is given twice among {sorted(column.spec.name for column in columns)}")
        for column in columns:
            self._check_type(column)
            self._check_count(column, groups if column.spec.level == "group" else rows)
        return Entries(
            tuple(column for column in columns if column.spec.level != "group"),
            tuple(column for column in columns if column.spec.level == "group"),
            _common_lengths([column for column in columns if column.spec.level == "token"]),
        )

    def _check_type(self, column: Column) -> None:
        spec = self.spec(column.spec.name)
        if column.spec is not spec and column.spec != spec:
            raise TransportError(f"column {spec.name!r} is declared as {spec}, not as {column.spec}")
        values = column.values
        if values.dtype != self._dtypes[spec.name] or values.ndim == 0 or values.shape[1:] != spec.trailing:
            raise TransportError(
                f"column {spec.name!r}: values of type {values.dtype} and shape {values.shape} do not fit {spec}"
            )
        if (column.offsets is not None) != spec.has_offsets:
            raise TransportError(f"column {spec.name!r}: {'no' if spec.has_offsets else 'unexpected'} offsets")

    def _check_count(self, column: Column, count: int) -> None:
        if len(column) != count:
            raise TransportError(f"column {column.spec.name!r} has {len(column)} entries where {count} belong")
        offsets = column.offsets
        if offsets is None:
            return
        borders = offsets.dtype == np.int64 and offsets.ndim == 1 and len(offsets) > 0 and offsets[0] == 0
        if not borders or offsets[-1] != len(column.values) or (offsets[1:] < offsets[:-1]).any():
            raise TransportError(f"column {column.spec.name!r}: offsets do not cut its {len(column.values)} values")


def column_bytes(column: Column) -> int:
    """Bytes of values and offsets."""
    return column.values.nbytes + (0 if column.offsets is None else column.offsets.nbytes)


def cut(column: Column, start: int, stop: int) -> Column:
    """A copy of the entries from ``start`` to before ``stop``."""
    if column.offsets is None:
        return Column(column.spec, column.values[start:stop].copy())
    first, last = column.offsets[start], column.offsets[stop]
    return Column(column.spec, column.values[first:last].copy(), column.offsets[start : stop + 1] - first)


def _common_lengths(columns: Sequence[Column]) -> IntArray | None:
    if not columns:
        return None
    for column in columns[1:]:
        if not np.array_equal(column.offsets, columns[0].offsets):  # type: ignore[arg-type]
            raise TransportError(
                f"column {column.spec.name!r} has other row lengths than {columns[0].spec.name!r}: "
                f"{column.lengths.tolist()[:8]} against {columns[0].lengths.tolist()[:8]}"
            )
    return columns[0].lengths

"""The door: nothing enters that does not have the declared type."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import Column, ColumnSpec, IntArray
from relax_core.api.errors import TransportError

PLACE_BITS = 20
"""A row id is its group's id and, in so many low bits, its place in the group: finding a row needs no index."""
PLACE_MASK = (1 << PLACE_BITS) - 1


def row_ids(group: int, places: range) -> IntArray:
    """int64 ids of rows of one group."""
    first = group << PLACE_BITS
    return np.arange(first + places.start, first + places.stop)


class Entries(Protocol):
    """Columns that were written in one step, as a transport's index sees them: arrays, or where to find them."""

    @property
    def rows(self) -> Sequence[str]:
        """Names of the columns with one entry per row."""

    @property
    def shared(self) -> Sequence[str]:
        """Names of the group columns, with one entry per group."""

    @property
    def lengths(self) -> IntArray | None:
        """int64 ``[n]`` tokens of each row; ``None`` without a per-token column."""

    @property
    def nbytes(self) -> int:
        """Bytes of values and offsets."""

    def nbytes_of(self, name: str) -> int:
        """The same of one column."""


E = TypeVar("E", bound=Entries)


@dataclass(frozen=True)
class Columns:
    """Entries in arrays.

    Args:
        by_name: The columns.
        rows: See :class:`Entries`, as for the rest.
    """

    by_name: Mapping[str, Column]
    rows: Sequence[str]
    shared: Sequence[str]
    lengths: IntArray | None = None

    @classmethod
    def of(cls, columns: Sequence[Column], lengths: IntArray | None = None) -> "Columns":
        """Columns of different names."""
        return cls(
            {column.spec.name: column for column in columns},
            [column.spec.name for column in columns if column.spec.level != "group"],
            [column.spec.name for column in columns if column.spec.level == "group"],
            lengths,
        )

    @property
    def nbytes(self) -> int:
        """See :class:`Entries`."""
        return sum([column.nbytes for column in self.by_name.values()])

    def nbytes_of(self, name: str) -> int:
        """See :class:`Entries`."""
        return self.by_name[name].nbytes


@dataclass(frozen=True)
class Writing(Generic[E]):
    """Entries for some rows of one group, at ascending places."""

    group: int
    places: IntArray
    entries: E


class Schema:
    """The declared columns of a run."""

    def __init__(self, columns: Sequence[ColumnSpec]) -> None:
        self.specs = {spec.name: spec for spec in columns}
        self._alike = dict(self.specs)
        self._dtypes = {spec.name: np.dtype(spec.dtype) for spec in columns}
        if len(self.specs) != len(columns):
            raise TransportError(f"a column is declared twice among {sorted(spec.name for spec in columns)}")

    def spec(self, name: str) -> ColumnSpec:
        """The declared type of a column; ``TransportError`` for an unknown one."""
        if name not in self.specs:
            near = get_close_matches(name, self.specs, 1) or sorted(self.specs)
            raise TransportError(f"unknown column {name!r}; declared is {', '.join(map(repr, near)) or 'nothing'}")
        return self.specs[name]

    def check(self, columns: Sequence[Column], rows: int, groups: int) -> Columns:
        """Columns by name once each has its type and the expected number of entries.

        Args:
            columns: What a role hands in.
            rows: Entries that per-token and per-row columns must have.
            groups: Entries that group columns must have.

        Raises:
            TransportError: Names the column and what is wrong with it.
        """
        token: Column | None = None  # the first per-token column; the others have its lengths, and mostly its offsets
        for column in columns:
            self._check_type(column)
            level = column.spec.level
            if token is None or level != "token":
                self._check_count(column, groups if level == "group" else rows)
                token = column if level == "token" else token
            elif not _is_cut_alike(column, token):
                self._check_count(column, rows)
                raise _other_lengths(column, token)
        checked = Columns.of(columns, None if token is None else token.lengths)
        if len(checked.by_name) < len(columns):
            raise TransportError(f"a column is given twice among {sorted(column.spec.name for column in columns)}")
        return checked

    def check_append(self, group: int, columns: Sequence[Column]) -> tuple[int, Columns]:
        """The number of rows that ``columns`` add to a group, and the columns by name.

        Raises:
            TransportError: There is no row, or a column does not have its type.
        """
        rows = next((len(column) for column in columns if column.spec.level != "group"), 0)
        entries = self.check(columns, rows, 1)
        if not rows:
            raise TransportError(f"append to group {group} without a row")
        return rows, entries

    def _check_type(self, column: Column) -> None:
        spec = column.spec
        if self._alike.get(spec.name) is not spec:  # as the same specification comes again and again
            if self.spec(spec.name) != spec:
                raise TransportError(f"column {spec.name!r} is declared as {self.specs[spec.name]}, not as {spec}")
            self._alike[spec.name] = spec
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
        borders = offsets.tolist() if offsets.dtype == np.int64 and offsets.ndim == 1 else []
        # For some hundred borders this is as quick as numpy, and much quicker for a few.
        if not borders or borders[0] != 0 or borders[-1] != len(column.values) or sorted(borders) != borders:
            raise TransportError(f"column {column.spec.name!r}: offsets do not cut its {len(column.values)} values")


def split(ids: npt.ArrayLike, columns: Sequence[Column], schema: Schema) -> list[Writing[Columns]]:
    """What a role writes, checked, group by group; values are not copied unless rows have to be put in order.

    Raises:
        TransportError: A row is named twice, or a column does not have its type.
    """
    index = np.asarray(ids, np.int64)
    order = None
    if (index[1:] <= index[:-1]).any():
        order = np.argsort(index, kind="stable")
        index = index[order]
        if (index[1:] == index[:-1]).any():
            raise TransportError("a row is named twice in one write")
    keys, starts = np.unique(index >> PLACE_BITS, return_index=True)
    entries = schema.check(columns, len(index), len(keys))
    if order is not None:
        lengths = None if entries.lengths is None else entries.lengths[order]
        entries = Columns.of(
            [column if column.spec.level == "group" else column.select(order) for column in columns], lengths
        )
    places = index & PLACE_MASK
    if len(keys) == 1:
        return [Writing(int(keys[0]), places, entries)]
    borders = [*starts.tolist(), len(index)]
    return [
        Writing(key, places[start:stop], _cut(entries, start, stop, number))
        for number, (key, start, stop) in enumerate(zip(keys.tolist(), borders, borders[1:], strict=False))
    ]


def _cut(entries: Columns, start: int, stop: int, group: int) -> Columns:
    """One group's entries: its rows from ``start`` to before ``stop``, its place among the groups."""
    columns = {
        **{name: cut(entries.by_name[name], start, stop) for name in entries.rows},
        **{name: cut(entries.by_name[name], group, group + 1) for name in entries.shared},
    }
    lengths = None if entries.lengths is None else entries.lengths[start:stop]
    return Columns(columns, entries.rows, entries.shared, lengths)


def cut(column: Column, start: int, stop: int) -> Column:
    """The entries from ``start`` to before ``stop``; values are a view."""
    if column.offsets is None:
        return Column(column.spec, column.values[start:stop])
    first, last = column.offsets[start], column.offsets[stop]
    return Column(column.spec, column.values[first:last], column.offsets[start : stop + 1] - first)


def _is_cut_alike(column: Column, checked: Column) -> bool:
    """Whether a column has as many values as one that has been checked, with the same offsets."""
    mine, its = column.offsets, checked.offsets
    if mine is None or its is None or len(column.values) != len(checked.values):
        return False
    same_kind = mine.dtype == its.dtype and mine.shape == its.shape
    return mine is its or (same_kind and mine.tobytes() == its.tobytes())  # quicker than numpy on a few hundred


def _other_lengths(column: Column, first: Column) -> TransportError:
    return TransportError(
        f"column {column.spec.name!r} has other row lengths than {first.spec.name!r}: "
        f"{column.lengths.tolist()[:8]} against {first.lengths.tolist()[:8]}"
    )

"""A rollout is a table: typed columns over rows, ragged where a row has its own length.

Alignment, once and for all: a per-token column has one entry for each token of its row; entry t belongs to token t
(log-probabilities: ``log p(token t | tokens before t)``), and entry 0 is void. Nothing is shifted outside a trainer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

Level = Literal["token", "row", "group"]
IntArray = npt.NDArray[np.int64]
NO_VERSION = -1


@dataclass(frozen=True)
class ColumnSpec:
    """Type of a column.

    Args:
        name: Column name, unique in a run.
        dtype: numpy dtype name.
        level: ``token``: one entry per token of the row. ``row``: one entry per row. ``group``: one entry per group,
            shared by its rows.
        trailing: Shape of one entry after the ragged axis.
        ragged: For ``row`` and ``group`` levels: the entry has a leading axis of its own free length.
    """

    name: str
    dtype: str
    level: Level = "token"
    trailing: tuple[int, ...] = ()
    ragged: bool = False

    @property
    def has_offsets(self) -> bool:
        """Whether entries have a length of their own."""
        return self.level == "token" or self.ragged


@dataclass(frozen=True)
class Column:
    """Entries of one column for n rows.

    Args:
        spec: The column's type.
        values: ``[n, *trailing]`` without offsets, else ``[total, *trailing]``: the entries end to end.
        offsets: int64 ``[n + 1]`` borders of the entries in ``values``; ``None`` where entries have no own length.
    """

    spec: ColumnSpec
    values: npt.NDArray[np.generic]
    offsets: IntArray | None = None

    @classmethod
    def of(cls, spec: ColumnSpec, entries: Sequence[npt.ArrayLike]) -> "Column":
        """Builds a column from one entry per row, converting to the column's dtype.

        Raises:
            ValueError: An entry's shape does not fit the column's type.
        """
        arrays = [np.asarray(entry, dtype=spec.dtype) for entry in entries]
        for array in arrays:
            shape = array.shape[1:] if spec.has_offsets and array.ndim else array.shape
            if shape != spec.trailing or (spec.has_offsets and array.ndim == 0):
                raise ValueError(f"column {spec.name!r}: an entry of shape {array.shape} does not fit {spec}")
        if not spec.has_offsets:
            shape = (len(arrays), *spec.trailing)
            return cls(spec, np.stack(arrays) if arrays else np.empty(shape, spec.dtype))
        offsets = np.zeros(len(arrays) + 1, np.int64)
        np.cumsum([len(array) for array in arrays], out=offsets[1:])
        empty = np.empty((0, *spec.trailing), spec.dtype)
        return cls(spec, np.concatenate([empty, *arrays]), offsets)

    @classmethod
    def concat(cls, columns: Sequence["Column"]) -> "Column":
        """The rows of several columns of one type, end to end; always a copy.

        Raises:
            ValueError: No columns, or columns of different types.
        """
        if not columns or any(c.spec is not columns[0].spec and c.spec != columns[0].spec for c in columns):
            raise ValueError(f"cannot join columns of types {[column.spec for column in columns]}")
        values = np.concatenate([column.values for column in columns])
        borders = [column.offsets for column in columns if column.offsets is not None]
        return cls(columns[0].spec, values, join_offsets(borders) if borders else None)

    def __len__(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    def __getitem__(self, row: int) -> npt.NDArray[np.generic]:
        """The entry of one row: a view, ``[length, *trailing]`` or ``[*trailing]``."""
        if self.offsets is None:
            entry: npt.NDArray[np.generic] = self.values[row]
            return entry
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def nbytes(self) -> int:
        """Bytes of values and offsets."""
        return self.values.nbytes + (0 if self.offsets is None else self.offsets.nbytes)

    @property
    def bounds(self) -> IntArray:
        """int64 ``[n + 1]`` borders of the entries in ``values``, also where each entry is one value."""
        return np.arange(len(self.values) + 1) if self.offsets is None else self.offsets

    @property
    def lengths(self) -> IntArray:
        """int64 ``[n]`` length of each entry's own axis (ones where it has none)."""
        return np.ones(len(self), np.int64) if self.offsets is None else self.offsets[1:] - self.offsets[:-1]

    def select(self, rows: npt.ArrayLike) -> "Column":
        """The same column for a choice of rows, by position, in the order given."""
        index = np.asarray(rows, np.int64)
        if self.offsets is None:
            return Column(self.spec, self.values[index])
        starts, lengths = self.offsets[:-1][index], self.lengths[index]
        offsets = np.zeros(len(index) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Column(self.spec, self.values[places], offsets)


def join_offsets(parts: Sequence[IntArray]) -> IntArray:
    """The offsets of several columns when their values are put end to end."""
    sizes = np.array([part[-1] for part in parts])
    offsets: IntArray = np.concatenate([parts[0][:1], *(part[1:] for part in parts)])
    offsets[1:] += np.repeat(np.cumsum(sizes) - sizes, [len(part) - 1 for part in parts])
    return offsets


@dataclass(frozen=True)
class Table:
    """Some columns of some rows, as a transport hands them out. Columns are aligned by position.

    Args:
        ids: int64 ``[n]`` row ids, given by the transport at ``append``.
        groups: int64 ``[n]`` group of each row.
        columns: By name. A group column has one entry per row here, equal within a group.
        versions: By column name, int64 ``[n]``: the weight version that computed the entry, ``NO_VERSION`` where no
            model did. Columns that no model computed may be absent.
    """

    ids: IntArray
    groups: IntArray
    columns: Mapping[str, Column] = field(default_factory=dict)
    versions: Mapping[str, IntArray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def with_column(self, column: Column, versions: IntArray | None = None) -> "Table":
        """The same rows with one more column, or another in its place."""
        name = column.spec.name
        known = self.versions if versions is None else {**self.versions, name: versions}
        return replace(self, columns={**self.columns, name: column}, versions=known)

    def select(self, rows: npt.ArrayLike) -> "Table":
        """The same columns for a choice of rows, by position, in the order given."""
        index = np.asarray(rows, np.int64)
        return Table(
            self.ids[index],
            self.groups[index],
            {name: column.select(index) for name, column in self.columns.items()},
            {name: version[index] for name, version in self.versions.items()},
        )

"""Columns and tables: ragged entries, choices of rows, joining."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.api.columns import Column, ColumnSpec, Table

TOKENS = ColumnSpec("tokens", "int64")
PAIRS = ColumnSpec("pairs", "float32", "row", (2,), ragged=True)
REWARD = ColumnSpec("reward", "float64", "row")
VECTOR = ColumnSpec("vector", "int32", "row", (3,))

entry_lists = st.lists(st.lists(st.integers(-9, 9), max_size=5), max_size=8)


def entries_of(column: Column) -> list[list[int]]:
    return [column[row].tolist() for row in range(len(column))]


@given(entry_lists)
def test_entries_come_back(entries: list[list[int]]) -> None:
    column = Column.of(TOKENS, entries)
    assert entries_of(column) == entries
    assert column.lengths.tolist() == [len(entry) for entry in entries]
    assert column.values.dtype == np.int64


@pytest.mark.parametrize(
    ("spec", "entry"),
    [(TOKENS, 1), (TOKENS, [[1]]), (PAIRS, [1, 2]), (PAIRS, [[1, 2, 3]]), (REWARD, [1.0]), (VECTOR, [1, 2])],
)
def test_an_entry_of_the_wrong_shape_is_refused(spec: ColumnSpec, entry: object) -> None:
    with pytest.raises(ValueError, match=spec.name):
        Column.of(spec, [entry])  # type: ignore[list-item]


@given(entry_lists, st.data())
def test_select_takes_rows_in_the_order_given(entries: list[list[int]], data: st.DataObject) -> None:
    count = len(entries)
    rows = data.draw(st.lists(st.integers(-count, count - 1), max_size=10)) if entries else []
    column = Column.of(TOKENS, entries).select(rows)
    assert entries_of(column) == [entries[row] for row in rows]
    assert column.offsets is not None
    assert column.offsets.dtype == np.int64


def test_select_keeps_trailing_axes_and_dtypes() -> None:
    pairs = Column.of(PAIRS, [[[1, 2]], np.empty((0, 2)), [[3, 4], [5, 6]]]).select([2, 1])
    assert entries_of(pairs) == [[[3, 4], [5, 6]], []]
    assert pairs.values.dtype == np.float32
    assert Column.of(VECTOR, [[1, 2, 3], [4, 5, 6]]).select([1]).values.tolist() == [[4, 5, 6]]
    assert Column.of(PAIRS, [[[1, 2]]]).select([]).values.shape == (0, 2)


def test_select_beyond_the_end_is_an_error() -> None:
    for column in (Column.of(TOKENS, [[1], [2, 3]]), Column.of(REWARD, [1.0, 2.0])):
        with pytest.raises(IndexError):
            column.select([2])


@given(st.lists(entry_lists, min_size=1, max_size=4))
def test_concat_joins_rows_end_to_end(parts: list[list[list[int]]]) -> None:
    column = Column.concat([Column.of(TOKENS, part) for part in parts])
    assert entries_of(column) == [entry for part in parts for entry in part]


def test_concat_copies_and_refuses_mixed_types() -> None:
    reward = Column.of(REWARD, [1.0])
    joined = Column.concat([reward])
    joined.values[0] = 2.0  # type: ignore[call-overload]
    assert reward.values.tolist() == [1.0]
    for columns in ([], [reward, Column.of(TOKENS, [[1]])]):
        with pytest.raises(ValueError, match="cannot join"):
            Column.concat(columns)


def test_a_table_selects_all_its_columns() -> None:
    table = Table(
        np.array([10, 11, 12]),
        np.array([1, 1, 2]),
        {"tokens": Column.of(TOKENS, [[1], [2, 3], []]), "reward": Column.of(REWARD, [0.1, 0.2, 0.3])},
        {"tokens": np.array([5, 6, 7])},
    )
    chosen = table.select([2, 0])
    assert chosen.ids.tolist() == [12, 10]
    assert chosen.groups.tolist() == [2, 1]
    assert entries_of(chosen["tokens"]) == [[], [1]]
    assert chosen["reward"].values.tolist() == [0.3, 0.1]
    assert chosen.versions["tokens"].tolist() == [7, 5]
    assert "reward" in chosen and "other" not in chosen

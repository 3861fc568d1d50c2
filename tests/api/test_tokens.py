from dataclasses import replace
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from relax_core.api.columns import Column, ColumnSpec, Table
from relax_core.api.tokens import Tokens, tokens_of, trainable_positions
from relax_core.api.trainer import MicroBatch
from relax_core.dataflow.columns import LOSS_MASK, SEGMENTS, SUPPORT_IDS, TOKENS

VALUE = ColumnSpec("value", "float32")
SCORE = ColumnSpec("score", "float32", "row")
LEVEL = ColumnSpec("level", "float32", "group")
ROWS = st.lists(st.lists(st.booleans(), max_size=6), max_size=5)


def batch_of(masks: list[list[Any]]) -> MicroBatch:
    """Tokens numbered from 0 over all rows; ``value`` equals the token, ``score`` the row, ``level`` half of it."""
    starts = np.cumsum([0, *map(len, masks)])
    numbers = [np.arange(start, start + len(mask)) for start, mask in zip(starts, masks, strict=False)]
    count = len(masks)
    columns = [
        Column.of(TOKENS, numbers),
        Column.of(LOSS_MASK, masks),
        Column.of(VALUE, numbers),
        Column.of(SCORE, list(range(count))),
        Column.of(LEVEL, [row / 2 for row in range(count)]),
        Column.of(SEGMENTS, [[[0, 0]]] * count),
        Column.of(SUPPORT_IDS, [[]] * count),
    ]
    table = Table(np.arange(count), np.arange(count), {column.spec.name: column for column in columns})
    return MicroBatch(table, np.arange(count) + 10, np.arange(count) + 20)


def trainable(masks: list[list[Any]]) -> list[tuple[int, int]]:
    return [(row, place) for row, mask in enumerate(masks) for place in range(1, len(mask)) if mask[place]]


@given(masks=ROWS)
def test_only_trainable_tokens_are_seen_in_order(masks: list[list[bool]]) -> None:
    batch = batch_of(masks)
    tokens = tokens_of(batch, {}, "cpu")
    starts = np.cumsum([0, *map(len, masks)])
    places = [starts[row] + place for row, place in trainable(masks)]
    rows = sorted({row for row, _ in trainable(masks)})
    assert trainable_positions(batch.table).tolist() == places
    assert len(tokens) == len(places) and tokens.rows == len(rows)
    assert tokens["value"].tolist() == places
    assert tokens["score"].tolist() == [row for row, _ in trainable(masks)]
    assert tokens.row("score").tolist() == rows
    assert tokens["level"].tolist() == [row / 2 for row, _ in trainable(masks)]
    assert tokens.group_rows.tolist() == [row + 10 for row in rows]
    assert tokens.group_tokens.tolist() == [row + 20 for row in rows]


def test_ids_masks_and_ragged_columns_are_hidden() -> None:
    tokens = tokens_of(batch_of([[0, 1]]), {}, "cpu")
    assert set(tokens.columns) == {"value", "score", "level"}
    assert "value" in tokens and "tokens" not in tokens


def tokens_with(values: torch.Tensor) -> Tokens:
    return tokens_of(
        batch_of([[1, 1, 0, 1], [0, 0], [0, 1], [0, 1, 1, 1]]), {"logprobs": values, "entropy": -values}, "cpu"
    )


def test_row_sums_means_and_spread() -> None:
    values = torch.tensor([1.0, 2.0, 5.0, 1.0, 2.0, 6.0], requires_grad=True)
    tokens = tokens_with(values)
    assert tokens.logprobs is values and tokens.entropy.tolist() == [-1, -2, -5, -1, -2, -6]
    assert tokens.row_sum(values).tolist() == [3, 5, 9]
    assert tokens.row_mean(values).tolist() == [1.5, 5, 3]
    assert tokens.spread(torch.tensor([7, 8, 9])).tolist() == [7, 7, 8, 9, 9, 9]
    (tokens.row_mean(values) * torch.tensor([2.0, 3.0, 6.0])).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [1, 1, 3, 2, 2, 2]


def test_a_group_is_summed_wherever_its_rows_are() -> None:
    batch = batch_of([[0, 1], [0, 1], [0, 0], [0, 1]])
    batch = replace(batch, table=replace(batch.table, groups=np.array([7, 3, 9, 7])))
    tokens = tokens_of(batch, {}, "cpu")
    assert tokens.group_index.tolist() == [1, 0, 1]
    assert tokens.group_sum(torch.tensor([1.0, 10.0, 100.0])).tolist() == [101.0, 10.0, 101.0]


def test_a_column_can_be_added_or_replaced() -> None:
    tokens = tokens_with(torch.zeros(6))
    added = tokens.with_column("score", torch.arange(6.0))
    assert added["score"].tolist() == [0, 1, 2, 3, 4, 5], "a replaced row column is per token from then on"
    assert tokens["score"].tolist() == [0, 0, 2, 3, 3, 3], "the tokens themselves are unchanged"


def test_not_a_number_at_a_masked_place_is_not_seen() -> None:
    batch = batch_of([[0, 1, 0], [0, 0]])
    value = batch.table["value"]
    poisoned = np.full_like(value.values, np.nan)
    poisoned[1] = 1.0
    columns = {**batch.table.columns, "value": replace(value, values=poisoned)}
    tokens = tokens_of(replace(batch, table=replace(batch.table, columns=columns)), {}, "cpu")
    assert tokens["value"].tolist() == [1]

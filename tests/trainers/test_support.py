import numpy as np
import pytest
import torch

from relax_core.api.columns import Column, Table
from relax_core.api.errors import TrainingError
from relax_core.api.tokens import trainable_positions
from relax_core.dataflow.columns import LOSS_MASK, SUPPORT_COUNTS, SUPPORT_IDS, TOKENS
from relax_core.trainers.support import EXCLUDED, support_of


def table_of(counts: list[list[int]], ids: list[list[int]], masks: list[list[int]]) -> Table:
    columns = [
        Column.of(TOKENS, [[5, 6, 7], [8, 9]]),
        Column.of(LOSS_MASK, masks),
        Column.of(SUPPORT_COUNTS, counts),
        Column.of(SUPPORT_IDS, ids),
    ]
    return Table(np.array([40, 41]), np.zeros(2, np.int64), {column.spec.name: column for column in columns})


def allowed_ids(table: Table) -> list[list[int]]:
    positions = trainable_positions(table)
    support = support_of(table, positions, "cpu")
    assert support is not None
    return [support.ids[support.tokens == token].tolist() for token in range(len(positions))]


def test_each_token_has_its_own_ids() -> None:
    table = table_of([[0, 2, 1], [0, 3]], [[6, 1, 7], [0, 9, 2]], [[0, 1, 1], [0, 1]])
    assert allowed_ids(table) == [[6, 1], [7], [0, 9, 2]]


def test_ids_of_tokens_that_were_masked_later_are_passed_over() -> None:
    table = table_of([[0, 2, 1], [0, 3]], [[6, 1, 7], [0, 9, 2]], [[0, 0, 1], [0, 1]])
    assert allowed_ids(table) == [[7], [0, 9, 2]]


def test_restriction_of_a_part_of_the_tokens() -> None:
    table = table_of([[0, 2, 1], [0, 3]], [[6, 1, 7], [0, 9, 2]], [[0, 1, 1], [0, 1]])
    support = support_of(table, trainable_positions(table), "cpu")
    assert support is not None
    restricted = support.restrict(torch.arange(20.0).view(2, 10), 1)
    assert [row.nonzero()[:, 0].tolist() for row in restricted > EXCLUDED] == [[7], [0, 2, 9]]
    assert restricted[1, 9] == 19


def test_no_column_is_the_whole_vocabulary() -> None:
    table = table_of([[0, 1, 1], [0, 1]], [[6, 7], [9]], [[0, 1, 1], [0, 1]])
    columns = {name: table[name] for name in ("tokens", "loss_mask")}
    assert support_of(Table(table.ids, table.groups, columns), trainable_positions(table), "cpu") is None


@pytest.mark.parametrize("counts", [[[0, 2, 1], [0, 3]], [[0, 2, 0], [0, 4]]])
def test_a_token_outside_its_support_is_named(counts: list[list[int]]) -> None:
    table = table_of(counts, [[6, 1, 3], [0, 9, 2]], [[0, 1, 1], [0, 1]])
    with pytest.raises(TrainingError, match="token 2 of row 40 is not in its own support_ids"):
        allowed_ids(table)


def test_counts_and_ids_must_fit() -> None:
    table = table_of([[0, 2, 1], [0, 3]], [[6, 1, 7], [0, 9]], [[0, 1, 1], [0, 1]])
    with pytest.raises(TrainingError, match="has 5 ids, but support_counts announces 6"):
        allowed_ids(table)

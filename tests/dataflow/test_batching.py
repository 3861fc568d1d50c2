"""Batch plans: every row once, within the budget, equally many micro-batches per rank."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.api.columns import Column, IntArray, Table
from relax_core.dataflow.batching import BatchPlan, UpdatePlan, micro_batches, plan_batch
from relax_core.dataflow.columns import TOKENS


@dataclass(frozen=True)
class Batch:
    lengths: IntArray
    trainable: IntArray
    groups: IntArray
    updates: int
    epochs: int
    token_budget: int
    ranks: int
    seed: int
    keep_together: str
    prefer_groups: bool

    def plan(self) -> BatchPlan:
        return plan_batch(**vars(self))


ROWS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60), st.integers(0, 9)), max_size=25)
SMALL = st.integers(1, 4)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    rows = np.array(draw(ROWS), np.int64).reshape(-1, 3)
    budget, seed = draw(st.integers(1, 200)), draw(st.integers(0, 99))
    keep_together = draw(st.sampled_from(["row", "group"]))
    trainable = np.minimum(rows[:, 1], rows[:, 0])
    sizes = (draw(SMALL), draw(SMALL), budget, draw(SMALL))
    return Batch(rows[:, 0], trainable, rows[:, 2], *sizes, seed, keep_together, draw(st.booleans()))


def rows_of(update: UpdatePlan) -> list[int]:
    return [row for rank in update.ranks for rows in rank for row in rows.tolist()]


def padded(batch: Batch, rows: IntArray) -> int:
    return len(rows) * int(batch.lengths[rows].max(initial=0))


@given(batches())
def test_every_trainable_row_appears_once_per_epoch(batch: Batch) -> None:
    plan = batch.plan()
    kept = np.flatnonzero(batch.trainable).tolist()
    assert sorted([*kept, *plan.left_out.tolist()]) == list(range(len(batch.lengths)))
    assert len(plan.updates) == batch.updates * batch.epochs
    for epoch in range(batch.epochs):
        updates = plan.updates[epoch * batch.updates : (epoch + 1) * batch.updates]
        assert sorted(row for update in updates for row in rows_of(update)) == kept


@given(batches())
def test_updates_hold_whole_groups_in_equal_shares(batch: Batch) -> None:
    plan = batch.plan()
    for epoch in range(batch.epochs):
        updates = plan.updates[epoch * batch.updates : (epoch + 1) * batch.updates]
        shares = [set(batch.groups[rows_of(update)].tolist()) for update in updates]
        assert sum(map(len, shares)) == len(set().union(*shares)), "a group is in one update"
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(batches())
def test_micro_batches_keep_to_the_budget(batch: Batch) -> None:
    for update in batch.plan().updates:
        for rows in (rows for rank in update.ranks for rows in rank):
            single = len(set(batch.groups[rows].tolist())) <= 1 if batch.keep_together == "group" else len(rows) <= 1
            assert padded(batch, rows) <= batch.token_budget or single


@given(batches())
def test_ranks_have_equal_counts_and_balanced_sizes(batch: Batch) -> None:
    for update in batch.plan().updates:
        assert len(update.ranks) == batch.ranks
        assert len({len(rank) for rank in update.ranks}) == 1
        sizes = [[padded(batch, rows) for rows in rank] for rank in update.ranks]
        loads = [sum(rank) for rank in sizes]
        assert max(loads) - min(loads) <= max((size for rank in sizes for size in rank), default=0)
        by_group = batch.keep_together == "group" or batch.prefer_groups
        items = len(set(batch.groups[rows_of(update)].tolist())) if by_group else len(rows_of(update))
        busy = sum(bool(sum(map(len, rank))) for rank in update.ranks)
        assert busy >= min(batch.ranks, items), "no rank idles while another has two items to do"


@given(batches())
def test_groups_stay_together_when_asked(batch: Batch) -> None:
    if batch.keep_together == "group":
        for update in batch.plan().updates:
            homes = [set(batch.groups[rows].tolist()) for rank in update.ranks for rows in rank]
            assert sum(map(len, homes)) == len(set().union(*homes))


@given(batches())
def test_groups_within_the_budget_stay_together_when_preferred(batch: Batch) -> None:
    if batch.prefer_groups:
        for update in batch.plan().updates:
            homes = Counter(
                group for rank in update.ranks for rows in rank for group in set(batch.groups[rows].tolist())
            )
            trained = np.array(rows_of(update), np.int64)
            for group, parts in homes.items():
                size = padded(batch, trained[batch.groups[trained] == group])
                assert parts == 1 or size > batch.token_budget


@given(batches())
def test_group_sums_count_the_update(batch: Batch) -> None:
    for update in batch.plan().updates:
        members = rows_of(update)
        for row in range(len(batch.lengths)):
            mates = [mate for mate in members if batch.groups[mate] == batch.groups[row]]
            assert update.group_rows[row] == len(mates)
            assert update.group_tokens[row] == sum(batch.trainable[mate] for mate in mates)


@given(batches())
def test_the_plan_follows_from_the_seed(batch: Batch) -> None:
    one, other = batch.plan(), batch.plan()
    assert [rows_of(update) for update in one.updates] == [rows_of(update) for update in other.updates]


def test_epochs_and_seeds_shuffle_differently() -> None:
    ones, groups = np.ones(64, np.int64), np.arange(64)
    shares = []
    for seed in range(2):
        plan = plan_batch(ones, ones, groups, updates=4, epochs=2, token_budget=99, ranks=1, seed=seed)
        shares += [tuple(sorted(rows_of(plan.updates[0]))), tuple(sorted(rows_of(plan.updates[4])))]
    assert len(set(shares)) == 4


def sizes_of(lengths: list[int], token_budget: int, ranks: int) -> list[list[int]]:
    """Padded size of each micro-batch of each rank, each row being a group of its own."""
    sizes = np.array(lengths)
    options = {"updates": 1, "epochs": 1, "token_budget": token_budget, "ranks": ranks, "seed": 0}
    (update,) = plan_batch(sizes, sizes, np.arange(len(sizes)), **options).updates
    return [[len(rows) * int(sizes[rows].max(initial=0)) for rows in rank] for rank in update.ranks]


def test_a_micro_batch_may_be_as_large_as_the_budget() -> None:
    assert sizes_of([5] * 4, token_budget=9, ranks=1) == [[5, 5, 5, 5]]
    assert sizes_of([5] * 4, token_budget=10, ranks=1) == [[10, 10]]
    assert sizes_of([50, 5], token_budget=10, ranks=1) == [[50, 5]]


def test_micro_batches_are_even_rather_than_full() -> None:
    assert sizes_of([10] * 12, token_budget=100, ranks=2) == [[60], [60]]
    assert sorted(map(sum, sizes_of([5] * 4, token_budget=100, ranks=3))) == [5, 5, 10]


def test_the_least_loaded_rank_gets_the_next_micro_batch() -> None:
    assert sizes_of([40, 30, 20, 10], token_budget=1, ranks=2) == [[40, 10], [30, 20]]


def test_rows_of_similar_length_share_a_micro_batch() -> None:
    lengths = np.array([100, 10] * 20)
    plan = plan_batch(lengths, lengths, np.arange(40), updates=1, epochs=1, token_budget=1000, ranks=1, seed=0)
    assert sum(len(rows) * lengths[rows].max() for rows in plan.updates[0].ranks[0]) == lengths.sum()


def test_few_groups_leave_updates_empty() -> None:
    plan = plan_batch([3, 3], [1, 1], [7, 7], updates=2, epochs=1, token_budget=9, ranks=2, seed=0)
    assert [len(rows_of(update)) for update in plan.updates] == [2, 0]
    assert plan.updates[1].group_rows.tolist() == [0, 0]


def test_bad_arguments_are_refused() -> None:
    good = {"updates": 1, "epochs": 1, "token_budget": 1, "ranks": 1, "seed": 0}
    with pytest.raises(ValueError, match="2 lengths, 1 trainable"):
        plan_batch([1, 1], [1], [0, 0], **good)
    for name in ("updates", "epochs", "token_budget", "ranks"):
        with pytest.raises(ValueError, match=f"{name}=0"):
            plan_batch([1], [1], [0], **{**good, name: 0})


def test_micro_batches_cut_the_table() -> None:
    table = Table(np.arange(3), np.array([5, 5, 6]), {"tokens": Column.of(TOKENS, [[1], [2, 3], [4, 5, 6]])})
    plan = plan_batch([1, 2, 3], [1, 1, 2], table.groups, updates=1, epochs=1, token_budget=4, ranks=2, seed=0)
    seen = {}
    for rank in range(2):
        for batch in micro_batches(table, plan.updates[0], rank, temperature=0.7):
            assert batch.temperature == 0.7
            for row in range(len(batch.table)):
                counts = (int(batch.group_rows[row]), int(batch.group_tokens[row]))
                seen[tuple(batch.table["tokens"][row].tolist())] = counts
    assert seen == {(1,): (2, 2), (2, 3): (2, 2), (4, 5, 6): (1, 2)}

"""From the rows of a batch to optimizer updates, ranks and micro-batches; pure and the same on every rank."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import Column, IntArray, Table
from relax_core.api.trainer import MicroBatch
from relax_core.dataflow.columns import LOSS_SCALE
from relax_core.dataflow.seeds import derive_seed


@dataclass(frozen=True)
class UpdatePlan:
    """One optimizer step. Positions are those of the rows in the batch's table.

    Args:
        ranks: For each rank its micro-batches, each an int64 array of positions. Every rank has as many; empty ones
            fill up.
        group_rows: int64 ``[n]``, one per row of the batch: rows with a trainable token that the row's group has in
            this update; 0 for groups outside it.
        group_tokens: int64 ``[n]``: trainable tokens of the row's group in this update; 0 outside it.
        scale: float32 ``[n]``: factor of all that a row adds to the loss; ``None`` where it is 1 everywhere.
    """

    ranks: tuple[tuple[IntArray, ...], ...]
    group_rows: IntArray
    group_tokens: IntArray
    scale: npt.NDArray[np.float32] | None = None

    @property
    def rows(self) -> IntArray:
        """int64: positions of the rows of this update, in the order of its ranks and micro-batches."""
        return np.concatenate([np.empty(0, np.int64), *(rows for rank in self.ranks for rows in rank)])

    def micro_batch(self, table: Table, rows: IntArray, temperature: float) -> MicroBatch:
        """A micro-batch of this update: its rows as a table, and their positions in the batch."""
        if self.scale is not None:
            table = table.with_column(Column(LOSS_SCALE, self.scale[rows]))
        return MicroBatch(table, self.group_rows[rows], self.group_tokens[rows], temperature)


@dataclass(frozen=True)
class BatchPlan:
    """All optimizer steps on a batch, in order, pass after pass.

    Args:
        updates: ``updates`` × ``epochs`` of them; with fewer groups than updates some are empty.
        left_out: Positions of rows without a trainable token; they are in no update.
    """

    updates: tuple[UpdatePlan, ...]
    left_out: IntArray


@dataclass(frozen=True)
class _Item:
    """Rows that stay in one micro-batch."""

    rows: IntArray
    longest: int


def plan_batch(
    lengths: npt.ArrayLike,
    trainable: npt.ArrayLike,
    groups: npt.ArrayLike,
    *,
    updates: int,
    epochs: int,
    token_budget: int,
    ranks: int,
    seed: int,
    keep_together: Literal["row", "group"] = "row",
    prefer_groups: bool = False,
    scale: npt.NDArray[np.float32] | None = None,
) -> BatchPlan:
    """Cuts a batch into updates by whole groups, and each update into micro-batches.

    In each epoch the groups are shuffled anew and dealt to the updates in equal shares (they differ by at most one).
    Within an update rows of similar length share a micro-batch; its padded size, rows times the longest of them, stays
    within the budget, unless a single item is larger: that gets a micro-batch of its own. Ranks have equally many
    micro-batches, and their padded sizes differ by at most the largest micro-batch.

    Args:
        lengths: int ``[n]`` tokens of each row.
        trainable: int ``[n]`` trainable tokens of each row.
        groups: int ``[n]`` group id of each row.
        updates: Optimizer steps per epoch.
        epochs: Passes over the batch.
        token_budget: Padded tokens of one micro-batch.
        ranks: Data-parallel ranks.
        seed: Same seed, same plan.
        keep_together: Whether single rows or whole groups are the items to pack.
        prefer_groups: Whether single rows are kept with those of their group as far as the budget allows.
        scale: float32 ``[n]`` factor of each row's loss.

    Raises:
        ValueError: Columns of unequal length, or a count below 1.
    """
    sizes, weights, owners = (np.asarray(values, np.int64) for values in (lengths, trainable, groups))
    if not len(sizes) == len(weights) == len(owners):
        raise ValueError(f"{len(sizes)} lengths, {len(weights)} trainable counts and {len(owners)} groups")
    if min(updates, epochs, token_budget, ranks) < 1:
        raise ValueError(f"{updates=}, {epochs=}, {token_budget=} and {ranks=} must all be at least 1")
    kept = np.flatnonzero(weights > 0)
    plans = []
    for epoch in range(epochs):
        order = np.random.default_rng(derive_seed(seed, "epoch", epoch)).permutation(np.unique(owners[kept]))
        for share in np.array_split(order, updates):
            by_group = [kept[owners[kept] == group] for group in share]
            items = _items(by_group, sizes, keep_together, token_budget if prefer_groups else 0)
            members = kept[np.isin(owners[kept], share)]
            plans.append(
                UpdatePlan(
                    _deal(_pack(items, token_budget, ranks), ranks),
                    _per_group(members, owners, np.ones_like(weights)),
                    _per_group(members, owners, weights),
                    scale,
                )
            )
    return BatchPlan(tuple(plans), np.flatnonzero(weights <= 0))


def micro_batches(table: Table, update: UpdatePlan, rank: int, temperature: float = 1.0) -> list[MicroBatch]:
    """The micro-batches of one rank, cut out of the batch's table."""
    return [update.micro_batch(table.select(rows), rows, temperature) for rows in update.ranks[rank]]


def _items(
    groups: Sequence[IntArray], sizes: IntArray, keep_together: Literal["row", "group"], preferred_tokens: int
) -> list[_Item]:
    """Whole groups when they must stay so; otherwise parts of as many padded tokens as preferred, or single rows."""
    items = []
    for rows in groups:
        most = len(rows) if keep_together == "group" else max(1, preferred_tokens // int(sizes[rows].max()))
        parts = np.array_split(rows, -(-len(rows) // most))
        items += [_Item(part, int(sizes[part].max())) for part in parts]
    return items


def _pack(items: Sequence[_Item], token_budget: int, ranks: int) -> list[list[_Item]]:
    """As few micro-batches per rank as the budget allows, and those as even as the items allow."""
    ordered = sorted(items, key=lambda item: -item.longest)
    rounds = -(-len(_fill(ordered, token_budget)) // ranks)
    budgets = range(1, token_budget)
    smallest = bisect_left(budgets, True, key=lambda budget: len(_fill(ordered, budget)) <= rounds * ranks)
    packed = _fill(ordered, smallest + 1)
    while len(packed) % ranks and any(len(items) > 1 for items in packed):
        largest = max(range(len(packed)), key=lambda index: (len(packed[index]) > 1, _padded(packed[index])))
        halved = packed.pop(largest)
        packed += [halved[: len(halved) // 2], halved[len(halved) // 2 :]]
    return packed


def _fill(ordered: Sequence[_Item], token_budget: int) -> list[list[_Item]]:
    """Longest first: the first item of a micro-batch gives its width, and the next that overflows starts a new one."""
    packed: list[list[_Item]] = []
    count = 0
    for item in ordered:
        if packed and (count + len(item.rows)) * packed[-1][0].longest <= token_budget:
            packed[-1].append(item)
            count += len(item.rows)
        else:
            packed.append([item])
            count = len(item.rows)
    return packed


def _deal(packed: Sequence[Sequence[_Item]], ranks: int) -> tuple[tuple[IntArray, ...], ...]:
    """Largest first and in rounds: in each round the least loaded rank gets the largest micro-batch that is left."""
    queue = sorted(packed, key=_padded, reverse=True)
    loads = np.zeros(ranks, np.int64)
    hands: list[list[IntArray]] = [[] for _ in range(ranks)]
    for start in range(0, len(queue), ranks):
        for rank, items in zip(np.argsort(loads, kind="stable"), queue[start : start + ranks], strict=False):
            hands[rank].append(np.concatenate([item.rows for item in items]))
            loads[rank] += _padded(items)
    most = max(map(len, hands))
    nothing = np.empty(0, np.int64)
    return tuple(tuple(hand + [nothing] * (most - len(hand))) for hand in hands)


def _padded(items: Sequence[_Item]) -> int:
    return sum(len(item.rows) for item in items) * max(item.longest for item in items)


def _per_group(members: IntArray, owners: IntArray, weights: IntArray) -> IntArray:
    """int64 ``[n]``: for each row of the batch, the weights of those members that share its group."""
    _, index = np.unique(owners, return_inverse=True)
    sums = np.zeros(len(owners), np.int64)
    np.add.at(sums, index[members], weights[members])
    return sums[index]

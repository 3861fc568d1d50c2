"""What an algorithm's loss sees: the trainable tokens of a micro-batch, flat, and nothing else.

Padding, packing, masks and parallelism are invisible here, so a NaN at a masked place cannot reach a loss.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from relax_core.api.columns import IntArray, Table
    from relax_core.api.trainer import MicroBatch

HIDDEN = frozenset({"tokens", "loss_mask"})


@dataclass(frozen=True)
class Tokens:
    """N trainable tokens of R rows. Rows without a trainable token are not among the R.

    Args:
        outputs: What the trainer computed with gradient, each float32 ``[N]``: ``logprobs``, ``entropy``, ...
        columns: Given numbers, without gradient: per token ``[N]`` or per row ``[R]``.
        row_index: int64 ``[N]``, ascending: the row each token belongs to.
        group_index: int64 ``[R]``: the group each row belongs to, 0 … G−1 in this micro-batch.
        group_rows: int64 ``[R]``: how many such rows the row's group has in the whole update.
        group_tokens: int64 ``[R]``: how many trainable tokens the row's group has in the whole update.
        row_columns: Names of the columns that are per row.
    """

    outputs: Mapping[str, Tensor]
    columns: Mapping[str, Tensor]
    row_index: Tensor
    group_index: Tensor
    group_rows: Tensor
    group_tokens: Tensor
    row_columns: frozenset[str] = frozenset()

    @property
    def logprobs(self) -> Tensor:
        """``[N]`` log-probabilities under the current policy, with gradient."""
        return self.outputs["logprobs"]

    @property
    def entropy(self) -> Tensor:
        """``[N]`` entropy in nats of the distribution each token was drawn from, with gradient."""
        return self.outputs["entropy"]

    @property
    def rows(self) -> int:
        """R."""
        return len(self.group_rows)

    def __len__(self) -> int:
        return len(self.row_index)

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> Tensor:
        """A column as ``[N]``; a per-row column is spread over its tokens."""
        column = self.columns[name]
        return self.spread(column) if name in self.row_columns else column

    def row(self, name: str) -> Tensor:
        """A per-row column as ``[R]``."""
        return self.columns[name]

    def row_sum(self, values: Tensor) -> Tensor:
        """``[N] -> [R]``: sum over the trainable tokens of each row, differentiable, right under any parallelism."""
        return values.new_zeros(self.rows).index_add(0, self.row_index, values)

    def row_mean(self, values: Tensor) -> Tensor:
        """``[N] -> [R]``: mean over the trainable tokens of each row."""
        return self.row_sum(values) / self.row_sum(torch.ones_like(values))

    def group_sum(self, values: Tensor) -> Tensor:
        """``[R] -> [R]``: each row gets the sum over the rows of its group, differentiable.

        Rows in other micro-batches are not among them: for algorithms that ask to keep groups together.
        """
        return values.new_zeros(self.rows).index_add(0, self.group_index, values)[self.group_index]

    def spread(self, values: Tensor) -> Tensor:
        """``[R] -> [N]``: each token gets its row's value."""
        return values[self.row_index]

    def with_column(self, name: str, values: Tensor) -> Tokens:
        """The same tokens with one more per-token column ``[N]``, or another in its place."""
        columns: Mapping[str, Tensor] = ChainMap({name: values}, self.columns)  # type: ignore[arg-type]  # only read
        return replace(self, columns=columns, row_columns=self.row_columns - {name})


def tokens_of(batch: MicroBatch, outputs: Mapping[str, Tensor], device: torch.device | str) -> Tokens:
    """Builds the view of a micro-batch for a loss; every trainer uses it.

    Args:
        batch: The rows. A token is trainable where ``loss_mask`` is true, entry 0 apart, which is void.
        outputs: float32 ``[N]`` each, in the order of the rows and, within a row, of the tokens.
        device: Where the columns go.
    """
    mask = batch.table["loss_mask"]
    positions = trainable_positions(batch.table)
    counts = np.array([np.count_nonzero(mask[row][1:]) for row in range(len(mask))], np.int64)
    visible = np.flatnonzero(counts)
    columns: dict[str, Tensor] = {}
    row_columns = set()
    for name, column in batch.table.columns.items():
        if name in HIDDEN or column.spec.ragged:
            continue
        if column.spec.level == "token":
            columns[name] = torch.as_tensor(column.values[positions], device=device)
        else:
            columns[name] = torch.as_tensor(column.values[visible], device=device)
            row_columns.add(name)
    index = np.repeat(np.arange(len(visible)), counts[visible])
    _, groups = np.unique(batch.table.groups[visible], return_inverse=True)
    return Tokens(
        outputs,
        columns,
        torch.as_tensor(index, device=device),
        torch.as_tensor(groups, device=device),
        torch.as_tensor(batch.group_rows[visible], device=device),
        torch.as_tensor(batch.group_tokens[visible], device=device),
        frozenset(row_columns),
    )


def trainable_positions(table: Table) -> IntArray:
    """int64 ``[N]``: places of the trainable tokens in the flat values of the table's per-token columns."""
    mask = table["loss_mask"]
    assert mask.offsets is not None
    trainable = mask.values.astype(bool)
    trainable[mask.offsets[:-1][mask.lengths > 0]] = False
    return np.flatnonzero(trainable)

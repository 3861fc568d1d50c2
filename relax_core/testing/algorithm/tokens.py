"""The tokens of an update, written by hand, and the sums that a trainer makes of a loss."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from relax_core.api.algorithm import Algorithm
from relax_core.api.tokens import Tokens


def make_tokens(
    rows: Sequence[Mapping[str, npt.ArrayLike]],
    groups: Sequence[int] | npt.NDArray[np.int64],
    outputs: Collection[str] = ("logprobs",),
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Tokens:
    """A whole update, of at least one row, as one micro-batch.

    Args:
        rows: One mapping per row from column name to its entry: an array as long as the row has trainable tokens, or a
            number for a column per row. Every row has the same columns.
        groups: Group of each row.
        outputs: Columns that stand for what a trainer computes; they become leaves that require a gradient.
        dtype: Of all floating point columns.
        device: Of everything.
    """
    lengths = torch.tensor([_length(row) for row in rows], dtype=torch.int64, device=device)
    index = torch.repeat_interleave(torch.arange(len(rows), device=device), lengths)
    group = torch.as_tensor(np.asarray(groups, np.int64), device=device)
    columns = {name: _tensor([row[name] for row in rows], dtype).to(device) for name in rows[0]}
    return Tokens(
        outputs={name: columns.pop(name).requires_grad_() for name in outputs},
        columns=columns,
        row_index=index,
        group_index=torch.unique(group, return_inverse=True)[1],
        group_rows=torch.bincount(group)[group],
        group_tokens=torch.bincount(group, lengths)[group].long(),
        row_columns=frozenset(name for name in columns if np.ndim(rows[0][name]) == 0),
    )


def select_rows(tokens: Tokens, rows: Sequence[int]) -> Tokens:
    """Some rows as a micro-batch of the same update; gradients reach the outputs of the whole."""
    device = tokens.row_index.device
    chosen = torch.as_tensor(rows, dtype=torch.int64, device=device)
    place = torch.cat([chosen[:0], *(torch.nonzero(tokens.row_index == row)[:, 0] for row in rows)])
    lengths = torch.bincount(tokens.row_index, minlength=tokens.rows)[chosen]
    return replace(
        tokens,
        outputs={name: value[place] for name, value in tokens.outputs.items()},
        columns={
            name: value[chosen if name in tokens.row_columns else place] for name, value in tokens.columns.items()
        },
        row_index=torch.repeat_interleave(torch.arange(len(rows)), lengths),
        group_index=torch.unique(tokens.group_index[chosen], return_inverse=True)[1],
        group_rows=tokens.group_rows[chosen],
        group_tokens=tokens.group_tokens[chosen],
    )


def sum_loss(algorithm: Algorithm, parts: Sequence[Tokens]) -> tuple[Tensor, Tensor, dict[str, tuple[Tensor, int]]]:
    """Σ value · weight with gradient, Σ weight, and sum and count of each metric, as a trainer adds them up."""
    losses = [algorithm.loss(part) for part in parts]
    numerator = torch.stack([(loss.value * loss.weight).sum() for loss in losses]).sum()
    denominator = torch.stack([loss.weight.sum() for loss in losses]).sum()
    metrics = {
        name: (
            torch.stack([loss.metrics[name].sum() for loss in losses]).sum(),
            sum(len(loss.metrics[name]) for loss in losses),
        )
        for name in losses[0].metrics
    }
    return numerator, denominator, metrics


def gradients(numerator: Tensor, tokens: Tokens) -> dict[str, Tensor]:
    """Gradient of each output, zero where it is not part of the loss."""
    leaves = list(tokens.outputs.values())
    found = torch.autograd.grad(numerator, leaves, allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if made is None else made
        for (name, leaf), made in zip(tokens.outputs.items(), found, strict=True)
    }


def _length(row: Mapping[str, npt.ArrayLike]) -> int:
    lengths = {len(np.asarray(value)) for value in row.values() if np.ndim(value) > 0}
    if len(lengths) != 1:
        raise ValueError(f"the per-token columns of a row have different lengths: {sorted(lengths)}")
    return lengths.pop()


def _tensor(entries: Sequence[npt.ArrayLike], dtype: torch.dtype) -> Tensor:
    values = torch.as_tensor(np.concatenate([np.atleast_1d(np.asarray(entry)) for entry in entries]))
    return values.to(dtype) if values.is_floating_point() else values

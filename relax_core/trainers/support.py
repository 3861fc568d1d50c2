"""The ids that top-p and top-k left at each token: the softmax of training is restricted to the same ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relax_core.api.columns import IntArray, Table
from relax_core.api.errors import TrainingError

EXCLUDED = -1e30
"""Logit of an id outside the support: its probability is exactly 0, and 0 times it is still a number."""


@dataclass(frozen=True)
class Support:
    """Allowed ids of N tokens, S in all.

    Args:
        tokens: int64 ``[S]``, ascending: which of the N tokens the id belongs to.
        ids: int64 ``[S]``.
        offsets: int64 ``[N + 1]``: borders of each token's ids.
    """

    tokens: Tensor
    ids: Tensor
    offsets: IntArray

    def restrict(self, logits: Tensor, start: int) -> Tensor:
        """The logits ``[n, V]`` of the tokens from ``start`` on, ``EXCLUDED`` wherever the id was not allowed."""
        part = slice(self.offsets[start], self.offsets[start + len(logits)])
        allowed = (self.tokens[part] - start, self.ids[part])
        return torch.full_like(logits, EXCLUDED).index_put(allowed, logits[allowed])


def support_of(table: Table, positions: IntArray, device: torch.device | str) -> Support | None:
    """Support of the tokens at some places of the flat per-token columns; ``None`` when the table has none.

    Raises:
        TrainingError: A token is not in its own support, or the columns do not fit each other.
    """
    if "support_counts" not in table:
        return None
    counts = table["support_counts"].values.astype(np.int64)
    ids = table["support_ids"].values.astype(np.int64)
    ends = np.cumsum(counts)
    if len(ids) != counts.sum():
        raise TrainingError(f"support_ids has {len(ids)} ids, but support_counts announces {counts.sum()}")
    chosen = counts[positions]
    offsets = np.concatenate([[0], np.cumsum(chosen)])
    first = (ends - counts)[positions]
    allowed = ids[np.repeat(first - offsets[:-1], chosen) + np.arange(offsets[-1])]
    owners = np.repeat(np.arange(len(positions)), chosen)
    found = np.zeros(len(positions), bool)
    found[owners[allowed == table["tokens"].values[positions][owners]]] = True
    if not found.all():
        raise TrainingError(f"{_place(table, positions[np.argmin(found)])} is not in its own support_ids")
    return Support(torch.as_tensor(owners, device=device), torch.as_tensor(allowed, device=device), offsets)


def _place(table: Table, position: int) -> str:
    """Where a place of the flat per-token columns is, in words."""
    offsets = table["tokens"].offsets
    assert offsets is not None
    row = int(np.searchsorted(offsets, position, side="right")) - 1
    return f"token {position - offsets[row]} of row {table.ids[row]}"

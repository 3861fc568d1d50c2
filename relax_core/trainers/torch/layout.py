"""How the rows of a table lie in the model's input, and where the results of their trainable tokens are found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relax_core.api.columns import IntArray, Table
from relax_core.api.tokens import trainable_positions


@dataclass(frozen=True)
class Layout:
    """Model input for N trainable tokens. What cannot influence one of them is not in it: rows without any, and in each
    row the last trainable token with all that follows.

    Args:
        input_ids: int64 ``[B, L]``: one row each, padded on the right, or ``[1, total]``: rows end to end.
        position_ids: int64 ``[1, total]``, starting at 0 in each row; ``None`` when padded. With causal attention no
            token sees the padding behind it, so neither layout needs an attention mask.
        predictors: int64 ``[N]``: place in the flattened ``[B · L]`` output that predicts each trainable token.
        targets: int64 ``[N]``: the trainable tokens.
        positions: int64 ``[N]``: their places in the flat values of the table's per-token columns.
        fed: Tokens in ``input_ids``, padding apart.
    """

    input_ids: Tensor
    position_ids: Tensor | None
    predictors: Tensor
    targets: Tensor
    positions: IntArray
    fed: int


def lay_out(table: Table, packing: bool, device: torch.device | str) -> Layout | None:
    """Arranges a table's rows for the model; ``None`` when no token is trainable."""
    positions = trainable_positions(table)
    if not len(positions):
        return None
    tokens = table["tokens"]
    assert tokens.offsets is not None
    rows = np.repeat(np.arange(len(tokens)), tokens.lengths)
    places = np.arange(len(rows)) - tokens.offsets[rows]
    used = np.zeros(len(tokens), np.int64)
    np.maximum.at(used, rows[positions], places[positions])
    fed = places < used[rows]
    if packing:
        shape = (1, int(used.sum()))
        slots = np.cumsum(fed) - 1
    else:
        shape = (int(np.count_nonzero(used)), int(used.max()))
        slots = (np.cumsum(used > 0) - 1)[rows] * shape[1] + places
    return Layout(
        input_ids=_filled(shape, slots[fed], tokens.values[fed], device),
        position_ids=_filled(shape, slots[fed], places[fed], device) if packing else None,
        predictors=torch.as_tensor(slots[positions - 1], device=device),
        targets=torch.as_tensor(tokens.values[positions].astype(np.int64), device=device),
        positions=positions,
        fed=int(used.sum()),
    )


def _filled(shape: tuple[int, int], slots: IntArray, values: np.ndarray, device: torch.device | str) -> Tensor:
    """Values at their places in an otherwise zero tensor of the given shape."""
    flat = np.zeros(shape[0] * shape[1], np.int64)
    flat[slots] = values
    return torch.as_tensor(flat.reshape(shape), device=device)

"""How the rows of a table lie in the model's input, and where the results of their trainable tokens are found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from relax_core.api.columns import IntArray, Table
from relax_core.api.tokens import trainable_positions
from relax_core.trainers.sharing import Rows, share_beginnings


@dataclass(frozen=True)
class Slots:
    """Where the T tokens of some rows lie in the model's input.

    Args:
        rows: All of them.
        slots: int64 ``[T]``: places in the flattened input, as far as the model is shown a token.
        shape: ``(B, L)`` of the input.
        device: Where it is.
    """

    rows: Rows
    slots: IntArray
    shape: tuple[int, int]
    device: torch.device | str

    def filled(self, values: npt.NDArray[np.generic]) -> Tensor:
        """``[B, L]``: values ``[T]`` of the tokens, integers as int64, and 0 where there is none."""
        fed = self.rows.place < self.rows.last[self.rows.row]
        flat = np.zeros(self.shape[0] * self.shape[1], np.int64 if values.dtype.kind == "i" else values.dtype)
        flat[self.slots[fed]] = values[fed]
        return torch.as_tensor(flat.reshape(self.shape), device=self.device)


@dataclass(frozen=True)
class Layout:
    """Model input for N trainable tokens. What cannot influence one of them is not in it: rows without any, and in each
    row the last trainable token with all that follows.

    Args:
        input_ids: int64 ``[B, L]``: one row each, padded on the right; or ``[1, total]``: rows end to end; or lines of
            rows that share their beginnings.
        position_ids: int64 like ``input_ids``: places in the rows; ``None`` when each has a line of its own. With
            causal attention no token sees the padding behind it, so neither this nor rows end to end need a mask.
        seen_until: int64 like ``input_ids``: what :func:`relax_core.trainers.sharing.attention_mask` makes the
            mask of; ``None`` where no beginning is shared.
        predictors: int64 ``[N]``: place in the flattened ``[B · L]`` output that predicts each trainable token.
        targets: int64 ``[N]``: the trainable tokens.
        positions: int64 ``[N]``: their places in the flat values of the table's per-token columns.
        fed: Tokens of the rows in ``input_ids``, padding apart; a shared one counts in each of its rows.
        slots: How ``input_ids`` came about.
    """

    input_ids: Tensor
    position_ids: Tensor | None
    seen_until: Tensor | None
    predictors: Tensor
    targets: Tensor
    positions: IntArray
    fed: int
    slots: Slots


def lay_out(
    table: Table,
    device: torch.device | str,
    packing: bool = False,
    share_up_to: int = 0,
    placeholders: npt.ArrayLike = (),
) -> Layout | None:
    """Arranges a table's rows for the model; ``None`` when no token is trainable.

    Args:
        table: Rows with ``tokens`` and ``loss_mask``.
        device: Where the model's input is.
        packing: Rows end to end, instead of one line each.
        share_up_to: Tokens with which all rows of a group begin once, the rest of each row behind them, as long as no
            line has more tokens than this.
        placeholders: Ids that stand for media.
    """
    positions = trainable_positions(table)
    if not len(positions):
        return None
    rows = _rows(table, positions, placeholders)
    shared = share_beginnings(rows) if share_up_to else None
    if shared is not None and shared.shape[1] > share_up_to:
        shared = None
    if shared is not None:
        at = Slots(rows, shared.slots, shared.shape, device)
    else:
        shape, places = _end_to_end(rows) if packing else _one_line_each(rows)
        at = Slots(rows, places, shape, device)
    return Layout(
        input_ids=at.filled(rows.tokens),
        position_ids=at.filled(rows.place) if packing or shared is not None else None,
        seen_until=None if shared is None else at.filled(shared.seen_until),
        predictors=torch.as_tensor(at.slots[positions - 1], device=device),
        targets=torch.as_tensor(rows.tokens[positions].astype(np.int64), device=device),
        positions=positions,
        fed=int(rows.last.sum()),
        slots=at,
    )


def _rows(table: Table, positions: IntArray, placeholders: npt.ArrayLike) -> Rows:
    tokens = table["tokens"]
    assert tokens.offsets is not None
    row = np.repeat(np.arange(len(tokens)), tokens.lengths)
    place = np.arange(len(row)) - tokens.offsets[row]
    first, last = np.full(len(tokens), len(row)), np.zeros(len(tokens), np.int64)
    np.minimum.at(first, row[positions], place[positions])
    np.maximum.at(last, row[positions], place[positions])
    media_end = np.zeros(len(tokens), np.int64)
    if np.size(placeholders):
        held = np.flatnonzero(np.isin(tokens.values, placeholders) & (place < last[row]))
        np.maximum.at(media_end, row[held], place[held] + 1)
    return Rows(tokens.values, row, place, tokens.offsets[:-1], table.groups, first, last, media_end)


def _end_to_end(rows: Rows) -> tuple[tuple[int, int], IntArray]:
    """Shape of the input and the slot of each token in it."""
    starts = np.cumsum(rows.last) - rows.last
    return (1, int(rows.last.sum())), starts[rows.row] + rows.place


def _one_line_each(rows: Rows) -> tuple[tuple[int, int], IntArray]:
    """Shape of the input and the slot of each token in it."""
    lines, width = np.cumsum(rows.last > 0), int(rows.last.max())
    return (int(lines[-1]), width), (lines - 1)[rows.row] * width + rows.place

"""Rows of a group that begin alike, in one sequence: their shared tokens once, then the rest of each row.

Lines hold sequences end to end. Within a sequence every token's view is a range: of those before it, it sees a shared
token throughout the sequence, and any other token up to the end of its own row. Positions are those in the row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from relax_core.api.columns import IntArray


@dataclass(frozen=True)
class Rows:
    """The rows of a micro-batch, as numbers for each of its T tokens and each of its n rows.

    Args:
        tokens: int ``[T]``, rows end to end.
        row: int64 ``[T]``: the token's row.
        place: int64 ``[T]``: its place in the row.
        starts: int64 ``[n]``: where each row starts in the T tokens.
        groups: int64 ``[n]``.
        first: int64 ``[n]``: place of the first trainable token.
        last: int64 ``[n]``: place of the last trainable token; 0 in a row without any.
        media_end: int64 ``[n]``: how many tokens there are up to the last placeholder of a medium, as far as the model
            is shown it; 0 in a row without any.
    """

    tokens: npt.NDArray[np.generic]
    row: IntArray
    place: IntArray
    starts: IntArray
    groups: IntArray
    first: IntArray
    last: IntArray
    media_end: IntArray


@dataclass(frozen=True)
class Shared:
    """Where T tokens of n rows lie in lines; tokens that rows share lie at the same slot.

    Args:
        shape: Lines and their width.
        slots: int64 ``[T]``: place in the flattened lines.
        seen_until: int64 ``[T]``: the first slot behind the token's own that no longer sees it.
    """

    shape: tuple[int, int]
    slots: IntArray
    seen_until: IntArray


def share_beginnings(rows: Rows) -> Shared | None:
    """Puts each group's rows into one sequence where they begin alike; ``None`` when no rows do."""
    shared = _shared_tokens(rows)
    if not shared.any():
        return None
    order, heads = _sequences(rows, shared)
    fed = np.where(heads, rows.last[order], (rows.last - shared)[order])
    starts = np.cumsum(fed) - fed
    sequence = np.cumsum(heads) - 1
    sizes = np.add.reduceat(fed, np.flatnonzero(heads))
    bases, shape = _lines(sizes)
    head, origin, end = (np.zeros(len(shared), np.int64) for _ in range(3))
    head[order] = bases[sequence]
    end[order] = (bases + sizes)[sequence]
    origin[order] = (bases - starts[heads])[sequence] + starts - np.where(heads, 0, shared[order])
    is_shared = rows.place < shared[rows.row]
    slots = np.where(is_shared, head[rows.row], origin[rows.row]) + rows.place
    return Shared(shape, slots, np.where(is_shared, end[rows.row], (origin + rows.last)[rows.row]))


def attention_mask(seen_until: Tensor, dtype: torch.dtype) -> Tensor:
    """``[B, 1, L, L]`` to be added to the scores: 0 where the query (third axis) sees the key, else very negative.

    Args:
        seen_until: int64 ``[B, L]``: the first slot of the flattened lines that no longer sees this one. Where there is
            padding, 0: it is seen by itself alone, so that no query is left without a key.
        dtype: Of the scores.
    """
    slots = torch.arange(seen_until.numel(), device=seen_until.device).view_as(seen_until)
    query, until = slots[:, :, None], torch.maximum(seen_until, slots + 1)[:, None, :]
    hidden = (query < slots[:, None, :]) | (query >= until)
    zeros = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return zeros.masked_fill(hidden, torch.finfo(dtype).min)[:, None]


def _shared_tokens(rows: Rows) -> IntArray:
    """int64 ``[n]``: how many tokens each row has in common with all others of its group, none of them trainable; and
    none, where some of the row's media are behind those: its media are together."""
    _, group = np.unique(rows.groups, return_inverse=True)
    members = np.flatnonzero(rows.last)
    example = np.full(len(rows.groups), len(rows.groups))
    np.minimum.at(example, group[members], members)
    common = np.full(len(rows.groups), len(rows.tokens))
    np.minimum.at(common, group[members], rows.first[members])
    common[np.bincount(group[members], minlength=len(common)) < 2] = 0
    candidates = np.flatnonzero((rows.place < common[group][rows.row]) & (rows.last > 0)[rows.row])
    owners, places = group[rows.row[candidates]], rows.place[candidates]
    differ = rows.tokens[candidates] != rows.tokens[rows.starts[example[owners]] + places]
    np.minimum.at(common, owners[differ], places[differ])
    needed = np.zeros(len(common), np.int64)
    np.maximum.at(needed, group[members], rows.media_end[members])
    return np.where(needed <= common, common, 0)[group]


def _sequences(rows: Rows, shared: IntArray) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """The rows with a trainable token, sequence by sequence, and which of them begin one."""
    members = np.flatnonzero(rows.last)
    order = members[np.lexsort((members, rows.groups[members], shared[members] == 0))]
    heads = np.ones(len(order), bool)
    heads[1:] = (shared[order][1:] == 0) | (rows.groups[order][1:] != rows.groups[order][:-1])
    return order, heads


def _lines(sizes: IntArray) -> tuple[IntArray, tuple[int, int]]:
    """Start of each sequence in the flattened lines, longest first, and how many lines of which width they are."""
    width = int(sizes.max())
    bases = np.zeros(len(sizes), np.int64)
    line, used = -1, width
    for sequence in np.argsort(-sizes, kind="stable"):
        if used + sizes[sequence] > width:
            line, used = line + 1, 0
        bases[sequence] = line * width + used
        used += sizes[sequence]
    return bases, (line + 1, width)

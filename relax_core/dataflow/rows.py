"""Training rows: made of an engine's generations, and counted."""

from collections.abc import Sequence

import numpy as np

from relax_core.api.columns import Column, IntArray
from relax_core.api.engine import Generation
from relax_core.dataflow import columns as core


def rows_of(prompt: Sequence[int], generations: Sequence[Generation]) -> list[Column]:
    """Columns of one row per generation: the prompt's tokens untrained, the generated ones trained."""
    start = len(prompt)
    before = np.zeros(start)
    columns = [
        Column.of(core.TOKENS, [[*prompt, *g.token_ids] for g in generations]),
        Column.of(core.LOSS_MASK, [[False] * start + [True] * len(g.token_ids) for g in generations]),
        Column.of(core.ROLLOUT_LOGPROBS, [np.concatenate([before, g.logprobs]) for g in generations]),
        Column.of(core.SEGMENTS, [_segments(start, g) for g in generations]),
        Column.of(core.STOP_REASON, [int(g.stop_reason) for g in generations]),
    ]
    supports = [g.support for g in generations]
    if any(support is not None for support in supports):
        sizes = [[len(ids) for ids in support or ()] for support in supports]
        columns.append(Column.of(core.SUPPORT_COUNTS, [[0] * start + counts for counts in sizes]))
        empty = np.empty(0, np.int32)
        columns.append(Column.of(core.SUPPORT_IDS, [np.concatenate([empty, *(support or ())]) for support in supports]))
    return columns


def trainable_counts(loss_mask: Column) -> IntArray:
    """int64 ``[n]``: trainable tokens of each row; entry 0 of a row is void."""
    mask = loss_mask.values.astype(bool)
    starts, stops = loss_mask.bounds[:-1], loss_mask.bounds[1:]
    mask[starts[starts < stops]] = False
    before = np.concatenate([[0], np.cumsum(mask)])
    counts: IntArray = before[stops] - before[starts]
    return counts


def _segments(start: int, generation: Generation) -> IntArray:
    segments = np.array(generation.segments, np.int64).reshape(-1, 2)
    segments[:, 0] += start
    return segments

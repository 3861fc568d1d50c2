"""Training rows: made of an engine's generations, and counted."""

from collections.abc import Sequence

import numpy as np

from relax_core.api.columns import Column, IntArray
from relax_core.api.engine import Generation
from relax_core.dataflow import columns as core


def joined(first: Generation, second: Generation) -> Generation:
    """A generation that was stopped, and what was generated after it: one generation."""
    shift = len(first.token_ids)
    later = [(start + shift, version) for start, version in second.segments]
    if first.segments and later and later[0][1] == first.segments[-1][1]:
        del later[0]
    support = None
    if first.support is not None and second.support is not None:
        support = (*first.support, *second.support)
    return Generation(
        second.key,
        (*first.token_ids, *second.token_ids),
        np.concatenate([first.logprobs, second.logprobs]),
        second.stop_reason,
        (*first.segments, *later),
        support,
    )


def rows_of(prompt: Sequence[int], generations: Sequence[Generation], only_last_version: bool = False) -> list[Column]:
    """Columns of one row per generation: the prompt's tokens untrained, the generated ones trained.

    With ``only_last_version``, those that the row's last weight version drew.
    """
    start = len(prompt)
    before = np.zeros(start)
    skipped = [g.segments[-1][0] if only_last_version and g.segments else 0 for g in generations]
    masks = [
        [False] * (start + skip) + [True] * (len(g.token_ids) - skip)
        for g, skip in zip(generations, skipped, strict=True)
    ]
    columns = [
        Column.of(core.TOKENS, [[*prompt, *g.token_ids] for g in generations]),
        Column.of(core.LOSS_MASK, masks),
        Column.of(core.ROLLOUT_LOGPROBS, [np.concatenate([before, g.logprobs]) for g in generations]),
        Column.of(core.SEGMENTS, [_segments(start, g) for g in generations]),
        Column.of(core.STOP_REASON, [int(g.stop_reason) for g in generations]),
    ]
    if any(g.support is not None for g in generations):
        columns += _support_columns(start, generations, skipped)
    return columns


def _support_columns(start: int, generations: Sequence[Generation], skipped: Sequence[int]) -> list[Column]:
    """The support of trained tokens: from ``start`` and so many skipped tokens on."""
    supports = [(g.support or ())[skip:] for g, skip in zip(generations, skipped, strict=True)]
    counts = [
        [0] * (start + skip) + [len(ids) for ids in support] for support, skip in zip(supports, skipped, strict=True)
    ]
    empty = np.empty(0, np.int32)
    ids = [np.concatenate([empty, *support]) for support in supports]
    return [Column.of(core.SUPPORT_COUNTS, counts), Column.of(core.SUPPORT_IDS, ids)]


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

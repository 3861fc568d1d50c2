"""How old a trained token may be: a bound at admission, a measurement at the start of a batch."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import IntArray, Table
from relax_core.dataflow.columns import LOSS_MASK, SEGMENTS


@dataclass(frozen=True)
class Admission:
    """How many groups may be on their way to the trainer.

    A batch trains ``batch_groups`` groups and publishes one version. A group that is issued as one of at most
    ``(max_staleness + 1) * batch_groups`` on their way is, taken in order, in one of the next ``max_staleness + 1``
    batches, so at most ``max_staleness`` publications lie between its first token and its batch. Counting groups rather
    than versions keeps this right after drops, short batches and restores. Groups that overtake others can
    make the slow ones older; those are dropped by their :func:`lags` when a batch starts.
    """

    batch_groups: int
    max_staleness: int

    @property
    def capacity(self) -> int:
        """Most groups on their way."""
        return (self.max_staleness + 1) * self.batch_groups

    def room(self, running: int, queued: int) -> int:
        """How many more groups may be issued now.

        Args:
            running: Groups issued whose rows are not complete.
            queued: Groups whose rows are complete and whose batch has not been published; the batch in training
                counts until then. Dropped groups are in neither.
        """
        return max(0, self.capacity - running - queued)


def lag(segments: npt.ArrayLike, loss_mask: npt.ArrayLike, trainer_version: int) -> int:
    """Trainer version minus the oldest version among a row's trainable tokens; 0 without such a token.

    Args:
        segments: int64 ``[S, 2]`` pairs ``(start, version)`` with ascending starts: from token ``start`` on, weights of
            that version sampled.
        loss_mask: bool ``[T]``. Entry 0 is void.
        trainer_version: Version at the start of the batch.

    Raises:
        ValueError: A trainable token lies before the first segment.
    """
    pairs, mask = np.asarray(segments, np.int64).reshape(-1, 2), np.asarray(loss_mask, bool)
    borders = np.array([0, len(mask)]), np.array([0, len(pairs)])
    return int(_lags(mask, borders[0], pairs, borders[1], trainer_version)[0])


def lags(table: Table, trainer_version: int) -> IntArray:
    """int64 ``[n]``: :func:`lag` of each row of a table with ``segments`` and ``loss_mask``."""
    mask, segments = table[LOSS_MASK.name], table[SEGMENTS.name]
    assert mask.offsets is not None and segments.offsets is not None
    return _lags(
        mask.values.astype(bool), mask.offsets, segments.values.astype(np.int64), segments.offsets, trainer_version
    )


def _lags(
    mask: npt.NDArray[np.bool_], tokens: IntArray, segments: IntArray, borders: IntArray, trainer_version: int
) -> IntArray:
    """``tokens`` and ``borders`` are the offsets of the rows in ``mask`` and in ``segments``."""
    rows, counts = len(tokens) - 1, np.diff(borders)
    row = np.repeat(np.arange(rows), counts)
    trainable = mask.copy()
    trainable[tokens[:-1][np.diff(tokens) > 0]] = False
    before = np.concatenate([[0], np.cumsum(trainable)])
    starts = tokens[row] + segments[:, 0]
    stops = np.append(starts[1:], 0)
    stops[borders[1:][counts > 0] - 1] = tokens[1:][counts > 0]
    used = before[stops] - before[starts]
    covered = np.bincount(row, used, rows)
    missing = np.flatnonzero(covered != before[tokens[1:]] - before[tokens[:-1]])
    if missing.size:
        raise ValueError(f"row {missing[0]}: a trainable token lies before the first segment")
    oldest = np.full(rows, np.iinfo(np.int64).max)
    np.minimum.at(oldest, row[used > 0], segments[used > 0, 1])
    return np.where(covered > 0, trainer_version - oldest, 0)

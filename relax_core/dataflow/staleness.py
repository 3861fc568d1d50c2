"""How old a trained token may be: a bound at admission, a measurement at the start of a batch."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import Column, IntArray, Table
from relax_core.dataflow.columns import LOSS_MASK, SEGMENTS


@dataclass(frozen=True)
class Admission:
    """How many groups may be on their way to the trainer.

    A batch trains ``batch_groups`` groups and publishes one version. A group that is issued as one of at most
    ``(max_staleness + 1) * batch_groups`` on their way is, taken in order, in one of the next ``max_staleness + 1``
    batches, so at most ``max_staleness`` publications lie between its first token and its batch. Counting groups rather
    than versions keeps this right after drops, short batches and restores. Groups that overtake others can
    make the slow ones older; those are found by their :func:`lags` when a batch starts.

    Args:
        batch_groups: Groups of one batch.
        max_staleness: Publications that may lie in between.
        surplus: Groups that may run beyond the capacity, until the next batches are :meth:`complete` without them.
    """

    batch_groups: int
    max_staleness: int
    surplus: int = 0

    @property
    def capacity(self) -> int:
        """Most groups that the next batches can take."""
        return (self.max_staleness + 1) * self.batch_groups

    def room(self, running: int, queued: int) -> int:
        """How many more groups may be issued now.

        Args:
            running: Groups issued whose rows are not complete.
            queued: Groups whose rows are complete and whose batch has not been published; the batch in training
                counts until then. Dropped groups are in neither.
        """
        return max(0, self.capacity + self.surplus - running - queued)

    def complete(self, queued: int) -> bool:
        """Whether the next batches have all their groups, so that whatever still runs is surplus."""
        return queued >= self.capacity


@dataclass
class Staleness:
    """What becomes of rows with tokens that are too old.

    Args:
        bound: Largest lag of a trained token.
        policy: ``drop`` the group, ``keep`` it as it is, or ``reweight``: scale its loss.
        republished: Versions that are no more than those before them under a new number: a restored policy is
            published anew, since versions never repeat, but nothing has become older by that. Ascending; grows.
    """

    bound: int = 0
    policy: Literal["drop", "keep", "reweight"] = "drop"
    republished: list[int] = field(default_factory=list)

    def lags(self, table: Table, trainer_version: int) -> IntArray:
        """int64 ``[n]``: :func:`lags`, with republished versions taken for what they are."""
        if not self.republished or "segments" not in table:
            return lags(table, trainer_version)
        segments = table[SEGMENTS.name]
        pairs = segments.values.astype(np.int64)
        pairs[:, 1] = self._distinct(pairs[:, 1])
        same = Column(segments.spec, pairs, segments.offsets)
        return lags(table.with_column(same), int(self._distinct(np.array([trainer_version]))[0]))

    def scale(self, lag: IntArray) -> npt.NDArray[np.float32] | None:
        """float32 ``[n]`` factors of the rows' losses; ``None`` where all are 1."""
        if self.policy != "reweight" or not (lag > self.bound).any():
            return None
        return np.where(lag > self.bound, (self.bound + 1) / (lag + 1.0), 1.0).astype(np.float32)

    def _distinct(self, versions: IntArray) -> IntArray:
        """How many different policies there were up to each version."""
        return versions - np.searchsorted(np.array(self.republished, np.int64), versions, side="right")


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

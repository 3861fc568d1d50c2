"""Keeps whole batches, with what the trainer computed on them, for those who look at a run or replay it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import Column, Table
from relax_core.api.trainer import MicroBatch, Sums
from relax_core.checkpoint.batches import BatchRecord
from relax_core.dataflow import columns as core
from relax_core.dataflow.rows import trainable_counts
from relax_core.roles.objective import Objective
from relax_core.trainers.columns import column_of

if TYPE_CHECKING:
    from relax_core.api.algorithm import Loss
    from relax_core.api.tokens import Tokens


@dataclass(frozen=True)
class WatchedObjective:
    """An objective that keeps the log-probabilities it is shown, in the process that asked for it and no other.

    Args:
        objective: The stage's.
        seen: One array per micro-batch is added.
    """

    objective: Objective
    seen: list[npt.NDArray[np.float32]]

    def __call__(self, tokens: Tokens) -> Loss:
        """The objective's loss."""
        self.seen.append(tokens.logprobs.detach().float().cpu().numpy())
        return self.objective(tokens)


class BatchRecorder:
    """Writes every so many batches as records.

    Args:
        write: Stores a record.
        every: Batches between stored ones.
        temperature: Of every log-probability.
    """

    def __init__(self, write: Callable[[BatchRecord], None], every: int, temperature: float) -> None:
        self._write = write
        self._every = every
        self._temperature = temperature
        self._batch: int | None = None
        self._logprobs: dict[int, npt.NDArray[np.generic]] = {}

    def begin(self, batch: int) -> None:
        """A batch starts; whether it is kept depends on its number."""
        self._batch = batch if batch % self._every == 0 else None
        self._logprobs = {}

    def accumulate(
        self,
        batches: Sequence[MicroBatch],
        objective: Objective,
        accumulate: Callable[[Sequence[MicroBatch], Objective | WatchedObjective], Sums],
    ) -> Sums:
        """Has gradients computed, and keeps the log-probabilities where the batch is kept and they come by."""
        if self._batch is None:
            return accumulate(batches, objective)
        watched = WatchedObjective(objective, [])
        sums = accumulate(batches, watched)
        shown = [batch for batch in batches if trainable_counts(batch.table["loss_mask"]).any()]
        if watched.seen and len(watched.seen) == len(shown):
            column = column_of(core.TRAINER_LOGPROBS.name, shown, watched.seen)
            ids = np.concatenate([batch.table.ids for batch in shown])
            for position, row in enumerate(ids.tolist()):
                # A later update of the batch is of another policy than the one that the batch began with.
                self._logprobs.setdefault(row, column[position])
        return sums

    def finish(self, record: BatchRecord) -> None:
        """The batch is trained."""
        if self._batch is None:
            return
        table = record.table
        if self._logprobs:
            table = table.with_column(self._column(table))
        self._write(replace(record, table=table, temperature=self._temperature))
        self._batch = None

    def _column(self, table: Table) -> Column:
        lengths = table["loss_mask"].lengths
        blank = [np.zeros(length, np.float32) for length in lengths]
        rows = zip(table.ids.tolist(), blank, strict=True)
        return Column.of(core.TRAINER_LOGPROBS, [self._logprobs.get(row, nothing) for row, nothing in rows])

    @property
    def active(self) -> bool:
        """Whether the present batch is kept."""
        return self._batch is not None

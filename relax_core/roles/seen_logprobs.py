"""What a rank keeps of a batch: the log-probabilities that its trainer computes anyway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from relax_core.api.trainer import MicroBatch, Sums
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


class SeenLogprobs:
    """Log-probabilities of the rows of a batch that is kept, where a rank computes them.

    Args:
        every: Batches between those that are kept.
        updates_per_batch: Optimizer steps of each.
    """

    def __init__(self, every: int, updates_per_batch: int) -> None:
        self._every = every
        self._updates_per_batch = updates_per_batch
        self._batch = -1
        self.logprobs: dict[int, npt.NDArray[np.generic]] = {}
        """By row id."""

    def begin(self, number: int) -> None:
        """An update of that number comes; those of another batch are forgotten."""
        batch = (number - 1) // self._updates_per_batch
        if batch != self._batch:
            self._batch, self.logprobs = batch, {}

    def accumulate(
        self,
        batches: Sequence[MicroBatch],
        objective: Objective,
        accumulate: Callable[[Sequence[MicroBatch], Objective | WatchedObjective], Sums],
    ) -> Sums:
        """Has gradients computed, and keeps the log-probabilities where the batch is kept and they come by."""
        if self._batch % self._every:
            return accumulate(batches, objective)
        watched = WatchedObjective(objective, [])
        sums = accumulate(batches, watched)
        shown = [batch for batch in batches if trainable_counts(batch.table["loss_mask"]).any()]
        if watched.seen and len(watched.seen) == len(shown):
            column = column_of(core.TRAINER_LOGPROBS.name, shown, watched.seen)
            ids = np.concatenate([batch.table.ids for batch in shown])
            for position, row in enumerate(ids.tolist()):
                # A later update of the batch is of another policy than the one that the batch began with.
                self.logprobs.setdefault(row, column[position])
        return sums

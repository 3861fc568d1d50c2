"""What a rank does: fetches its rows by id, and puts them through its trainer."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from relax_core.api.columns import Column, ColumnSpec
from relax_core.api.errors import ConfigError
from relax_core.api.trainer import MicroBatch, Sums, Trainer
from relax_core.api.transport import Lease, Transport
from relax_core.dataflow.batching import UpdatePlan
from relax_core.dataflow.plan import Plan
from relax_core.roles.objective import Objective
from relax_core.roles.ranks import Ranks


@dataclass(frozen=True)
class TrainingRank:
    """One rank's work, in the process that holds its trainer.

    Args:
        plan: Which columns each role reads.
        trainer: Holds the model.
        transport: Rows in and out.
        objective: The loss.
        temperature: Temperature of every log-probability.
        rank: Which of the update's ranks this one is.
    """

    plan: Plan
    trainer: Trainer
    transport: Transport
    objective: Objective
    temperature: float
    rank: int = 0

    def __post_init__(self) -> None:
        """Refuses an algorithm that needs more than the trainer computes."""
        for output in sorted(self.plan.requirements.outputs - self.trainer.outputs):
            known = ", ".join(sorted(self.trainer.outputs))
            raise ConfigError(f"algorithm: needs the output {output!r}; {type(self.trainer).__name__} computes {known}")

    def accumulate(self, lease: Lease, update: UpdatePlan) -> Sums:
        """Adds the gradients of this rank's micro-batches."""
        return self.trainer.accumulate(self._micro_batches(lease, update), self.objective)

    def forward(self, lease: Lease, update: UpdatePlan, column: ColumnSpec, version: int) -> None:
        """Writes the column for this rank's rows."""
        batches = self._micro_batches(lease, update)
        batches = [batch for batch in batches if len(batch.table)]
        if not batches:
            return
        computed = self.trainer.forward(batches, frozenset({"logprobs"}))["logprobs"]
        ids = np.concatenate([batch.table.ids for batch in batches])
        self.transport.write(ids, [Column(column, computed.values, computed.offsets)], version, lease.attempt > 1)

    def _micro_batches(self, lease: Lease, update: UpdatePlan) -> list[MicroBatch]:
        role = self.plan.role(lease.consumer)
        assert role is not None
        reads = sorted(role.reads)
        batches = []
        for rows in update.ranks[self.rank]:
            table = self.transport.fetch(lease, reads, lease.table.ids[rows])
            batches.append(MicroBatch(table, update.group_rows[rows], update.group_tokens[rows], self.temperature))
        return batches


class LocalRanks(Ranks):
    """A single rank in this process, where roles are never started anew: no update is asked for twice.

    Args:
        rank: The rank.
    """

    size = 1

    def __init__(self, rank: TrainingRank) -> None:
        self._rank = rank
        self.prefers_groups = rank.trainer.prefers_groups

    async def train(self, lease: Lease, update: UpdatePlan, number: int) -> tuple[Sums, Mapping[str, float]]:
        sums = self._rank.accumulate(lease, update)
        return sums, self._rank.trainer.apply(sums.weight)

    async def forward(self, lease: Lease, update: UpdatePlan, column: ColumnSpec, version: int) -> None:
        self._rank.forward(lease, update, column, version)

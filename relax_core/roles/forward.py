"""Forward roles write what a model thinks of rows: the reference, and the trainer at the start of a batch."""

from collections.abc import Callable

import numpy as np

from relax_core.api.columns import Column, ColumnSpec, Table
from relax_core.api.errors import EndOfStream
from relax_core.api.transport import Transport
from relax_core.config.run import BatchConfig
from relax_core.dataflow.batching import plan_batch
from relax_core.dataflow.rows import trainable_counts
from relax_core.roles.lease import held
from relax_core.roles.ranks import Ranks
from relax_core.roles.role import Progress, Role


class ForwardRole(Role):
    """Has log-probabilities of every group that is ready computed and written as one column.

    Args:
        name: Role name in the plan.
        column: What is written.
        ranks: Hold the model.
        version: The weight version the model has now.
        transport: Rows in and out.
        batch: Sizes.
        next_batch_only: Whether the column must be of the weights at the start of a group's batch: no group is then
            computed that is not in the next one.
    """

    def __init__(
        self,
        name: str,
        column: ColumnSpec,
        ranks: Ranks,
        version: Callable[[], int],
        transport: Transport,
        batch: BatchConfig,
        next_batch_only: bool = False,
    ) -> None:
        self.name = name
        self._column = column
        self._ranks = ranks
        self._version = version
        self._transport = transport
        self._batch = batch
        self._next_batch_only = next_batch_only

    async def step(self) -> Progress:
        """Handles up to a batch of groups."""
        self.timeline.waiting(self.name)
        most = self._batch.tasks - (self._waiting() if self._next_batch_only else 0)
        if most < 1:
            return Progress.IDLE
        try:
            lease = self._transport.take(self.name, 1, most, self.patience)
        except EndOfStream:
            return Progress.DONE
        if lease is None:
            return Progress.IDLE
        self.timeline.working(self.name)
        mask = lease.table["loss_mask"]
        plan = plan_batch(
            mask.lengths,
            trainable_counts(mask),
            lease.table.groups,
            updates=1,
            epochs=1,
            token_budget=self._batch.tokens_per_micro_batch,
            ranks=self._ranks.size,
            seed=0,
            prefer_groups=self._ranks.prefers_groups,
        )
        with held(self._transport, lease), self.timeline.span(self.name, "forward"):
            await self._ranks.forward(lease, plan.updates[0], self._column, self._version())
        self._write_blank(lease.table.select(plan.left_out), repeat=lease.attempt > 1)
        self._transport.ack(lease)
        return Progress.WORKED

    def _waiting(self) -> int:
        """Groups with this role's column that are not trained: the transport forgets those that are, or are dropped."""
        depth = self._transport.depth()
        return depth["groups"] - depth[f"ready/{self.name}"]

    def _write_blank(self, table: Table, repeat: bool) -> None:
        """Rows without a trainable token do not go through a model; their column is zero like every untrained place."""
        if len(table):
            blank = [np.zeros(length) for length in table["loss_mask"].lengths]
            self._transport.write(table.ids, [Column.of(self._column, blank)], self._version(), repeat)

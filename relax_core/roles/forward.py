"""Forward roles write what a model thinks of rows: the reference, and the trainer at the start of a batch."""

from collections.abc import Callable, Sequence

import numpy as np

from relax_core.api.columns import Column, ColumnSpec
from relax_core.api.errors import EndOfStream
from relax_core.api.trainer import Trainer
from relax_core.api.transport import Transport
from relax_core.dataflow.batching import micro_batches, plan_batch
from relax_core.dataflow.rows import trainable_counts
from relax_core.roles.role import Progress, Role


class ForwardRole(Role):
    """Computes log-probabilities of every group that is ready and writes them as one column.

    Args:
        name: Role name in the plan.
        reads: Columns the model needs.
        column: What is written.
        trainer: Holds the model.
        version: The weight version the model has now.
        transport: Rows in and out.
        groups: Most groups per step.
        token_budget: Padded tokens per micro-batch.
        temperature: Temperature of every log-probability.
    """

    def __init__(
        self,
        name: str,
        reads: Sequence[str],
        column: ColumnSpec,
        trainer: Trainer,
        version: Callable[[], int],
        transport: Transport,
        groups: int,
        token_budget: int,
        temperature: float,
    ) -> None:
        self.name = name
        self._reads = reads
        self._column = column
        self._trainer = trainer
        self._version = version
        self._transport = transport
        self._groups = groups
        self._token_budget = token_budget
        self._temperature = temperature

    async def step(self) -> Progress:
        """Handles up to a batch of groups."""
        try:
            lease = self._transport.take(self.name, 1, self._groups)
        except EndOfStream:
            return Progress.DONE
        if lease is None:
            return Progress.IDLE
        table = self._transport.fetch(lease, self._reads)
        lengths = table["tokens"].lengths
        trainable = trainable_counts(table["loss_mask"])
        budget = self._token_budget
        plan = plan_batch(lengths, trainable, table.groups, updates=1, epochs=1, token_budget=budget, ranks=1, seed=0)
        batches = micro_batches(table, plan.updates[0], 0, self._temperature)
        computed = self._trainer.forward(batches, frozenset({"logprobs"}))["logprobs"]
        rows = np.concatenate([*plan.updates[0].ranks[0], plan.left_out])
        # Rows without a trainable token did not go through the model; their column is zero like every untrained place.
        blank = np.zeros(int(lengths[plan.left_out].sum()), np.float32)
        column = Column(self._column, np.concatenate([computed.values, blank]), np.concatenate([[0], np.cumsum(lengths[rows])]))
        self._transport.write(table.ids[rows], [column], self._version())
        self._transport.ack(lease)
        return Progress.WORKED

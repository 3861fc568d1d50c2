"""The actor role trains: one batch of groups per step, then a publication."""

import time
from collections.abc import Awaitable, Callable, Mapping

import numpy as np

from relax_core.api.columns import Table
from relax_core.api.errors import EndOfStream
from relax_core.api.transport import Lease, Transport
from relax_core.config.run import BatchConfig
from relax_core.dataflow.batching import BatchPlan, UpdatePlan, plan_batch
from relax_core.dataflow.plan import Plan
from relax_core.dataflow.rows import trainable_counts
from relax_core.dataflow.seeds import derive_seed
from relax_core.dataflow.staleness import lags
from relax_core.metrics.update import update_metrics
from relax_core.roles.batches import COUNTERS
from relax_core.roles.collaborators import Batches
from relax_core.roles.lease import held
from relax_core.roles.ranks import Ranks
from relax_core.roles.role import Progress, Role


class Actor(Role):
    """Trains on one batch per step. Ranks fetch the rows; the role itself sees only the light columns.

    A role that was killed and is started anew gets the groups of its lease again. It repeats the batch it had begun:
    same plan, same numbers of updates, and the ranks do none of them twice.

    Args:
        plan: What the stage needs.
        batch: Sizes.
        ranks: Hold the policy.
        transport: Rows in.
        batches: Remembers what was begun and finished.
        version: The version the trainer has published last.
        publish: Publishes the weights after a batch.
        report: Receives ``(update, metrics)`` after each update.
        max_staleness: Groups with an older token are dropped.
        seed: Base seed of the order within a batch.
    """

    name = "actor"

    def __init__(
        self,
        plan: Plan,
        batch: BatchConfig,
        ranks: Ranks,
        transport: Transport,
        batches: Batches,
        version: Callable[[], int],
        publish: Callable[[], Awaitable[None]],
        report: Callable[[int, dict[str, float]], None],
        max_staleness: int,
        seed: int,
    ) -> None:
        self._plan = plan
        self._batch = batch
        self._ranks = ranks
        self._transport = transport
        self._batches = batches
        self._version = version
        self._publish = publish
        self._report = report
        self._max_staleness = max_staleness
        self._seed = seed
        self.updates = 0
        self.batches = 0
        self.max_lag = 0
        self.trained_tokens = 0
        self.seconds = 0.0

    async def step(self) -> Progress:
        """Trains on the next batch if it is complete."""
        try:
            lease = self._transport.take(self.name, self._batch.tasks, self._batch.tasks, self.patience)
        except EndOfStream:
            return Progress.DONE
        if lease is None:
            return Progress.IDLE
        groups = tuple(dict.fromkeys(lease.table.groups.tolist()))
        repeated = lease.attempt > 1
        if not (repeated and groups == self._batches.finished):
            if not (repeated and groups == self._batches.begun):
                if self._drop_stale(lease):
                    return Progress.WORKED
                self._batches.begin(groups, self.state())
            with held(self._transport, lease):
                await self._train(lease)
        self._transport.ack(lease)
        return Progress.WORKED

    async def _train(self, lease: Lease) -> None:
        for update in self._plan_batch(lease.table).updates:
            await self._update(lease, update)
        # Only with the new weights published may the source replace these groups: see Admission.
        await self._publish()
        self.batches += 1
        self._batches.finish(self.state())

    def _drop_stale(self, lease: Lease) -> bool:
        """Drops whole groups with a token beyond the bound and gives the rest back, so that the batch is refilled."""
        if "segments" not in lease.table:
            return False
        lag = lags(lease.table, self._version())
        stale = sorted(set(lease.table.groups[lag > self._max_staleness].tolist()))
        if not stale:
            self.max_lag = max(self.max_lag, int(lag.max(initial=0)))
            return False
        for group in stale:
            self._batches.dropped(group, "stale")
        self._transport.nack(lease)
        self._transport.drop(stale)
        return True

    def _plan_batch(self, table: Table) -> BatchPlan:
        trainable = trainable_counts(table["loss_mask"])
        if "scored" in table:
            trainable = np.where(table["scored"].values, trainable, 0)
        return plan_batch(
            table["loss_mask"].lengths,
            trainable,
            table.groups,
            updates=self._batch.updates_per_batch,
            epochs=self._batch.epochs_per_batch,
            token_budget=self._batch.tokens_per_micro_batch,
            ranks=self._ranks.size,
            keep_together=self._plan.requirements.keep_together,
            prefer_groups=self._ranks.prefers_groups,
            seed=derive_seed(self._seed, "batch", self.batches),
        )

    async def _update(self, lease: Lease, update: UpdatePlan) -> None:
        started = time.monotonic()
        sums, metrics = await self._ranks.train(lease, update, self.updates + 1)
        seconds = time.monotonic() - started
        self.updates += 1
        self.seconds += seconds
        self.trained_tokens += sums.tokens
        rows = np.concatenate([np.empty(0, np.int64), *(rows for rank in update.ranks for rows in rank)])
        report = update_metrics(sums, metrics, lease.table.select(rows))
        report["perf/train_tokens_per_s"] = sums.tokens / seconds
        report["train/version"] = float(self._version())
        self._report(self.updates, report)

    def state(self) -> dict[str, int | float]:
        """Counters between two batches, as JSON values."""
        return {name: getattr(self, name) for name in COUNTERS}

    def restore(self, state: Mapping[str, int | float]) -> None:
        """Sets the counters to those of :meth:`state`."""
        for name in COUNTERS:
            setattr(self, name, state[name])

"""The actor role trains: one batch of groups per step, then a publication."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from relax_core.api.columns import IntArray, Table
from relax_core.api.errors import EndOfStream
from relax_core.api.trainer import Sums
from relax_core.api.transport import Lease, Transport
from relax_core.checkpoint.batches import BatchRecord
from relax_core.config.run import BatchConfig
from relax_core.dataflow.batching import BatchPlan, UpdatePlan, plan_batch
from relax_core.dataflow.plan import Plan
from relax_core.dataflow.rows import trainable_counts
from relax_core.dataflow.seeds import derive_seed
from relax_core.dataflow.staleness import Staleness
from relax_core.media.blobs import stored_media
from relax_core.metrics.activity import Beside, DataWait
from relax_core.metrics.update import update_metrics
from relax_core.roles.batches import COUNTERS
from relax_core.roles.collaborators import Batches, Publications
from relax_core.roles.lease import held
from relax_core.roles.ranks import Ranks
from relax_core.roles.role import Progress, Role

if TYPE_CHECKING:
    from relax_core.roles.recorder import BatchRecorder


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
        staleness: What becomes of groups with a token that is too old.
        seed: Base seed of the order within a batch.
        recorder: Keeps whole batches; ``None`` keeps none.
        generated_tokens: What the engine has generated so far, to see how much of it is done during updates; ``None``
            where this process does not know.
        beside: What went on beside the actor up to a time, to see what it waits for.
        publications: What ``publish`` has begun and left going on; ``None`` where it leaves nothing.
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
        staleness: Staleness,
        seed: int,
        recorder: BatchRecorder | None = None,
        generated_tokens: Callable[[], int] | None = None,
        beside: Callable[[float], Beside] = lambda until: Beside(),
        publications: Publications | None = None,
    ) -> None:
        self._plan = plan
        self._batch = batch
        self._ranks = ranks
        self._transport = transport
        self._batches = batches
        self._version = version
        self._publish = publish
        self._report = report
        self._staleness = staleness
        self._seed = seed
        self._recorder = recorder
        self._generated_tokens = generated_tokens
        self._data_wait = DataWait(beside)
        self._publications = publications
        self._batch_version = 0
        """Of the weights that the present batch began with: when it is repeated, later ones may be published."""
        self.training = False
        """Whether weights are being changed or published: until then, nothing has happened that cannot be undone."""
        self.updates = 0
        self.batches = 0
        self.max_lag = 0
        self.trained_tokens = 0
        self.seconds = 0.0

    async def step(self) -> Progress:
        """Trains on the next batch if it is complete."""
        self.wait()
        await self._take_back()
        try:
            lease = self._transport.take(self.name, self._batch.tasks, self._batch.tasks, self.patience)
        except EndOfStream:
            return Progress.DONE
        if lease is None:
            return self._without_rows()
        groups = tuple(dict.fromkeys(lease.table.groups.tolist()))
        repeated = lease.attempt > 1
        if not (repeated and groups == self._batches.finished):
            begun = repeated and groups == self._batches.begun
            self._begin_with(begun)
            if not begun and self._drop_stale(lease):
                return Progress.WORKED
            self._go_on()
            with held(self._transport, lease):
                if not begun:
                    self._batches.begin(groups, self._state_in_batch())
                await self._train(lease)
        self._transport.ack(lease)
        self.training = False
        self.wait()
        return Progress.WORKED

    async def settled(self) -> None:
        """Returns when the publication that goes on has ended."""
        if self._publications is not None:
            await self._publications.ended()

    async def _take_back(self) -> None:
        """A publication that has failed meanwhile is this role's failure."""
        if self._publications is not None and not self._publications.sending:
            await self._publications.settled()

    def _without_rows(self) -> Progress:
        """Groups that are not admitted before engines have the weights may be all that is missing."""
        return Progress.BUSY if self._publications is not None and self._publications.sending else Progress.IDLE

    def wait(self) -> None:
        """From now on there is nothing to do, until there are rows: a runtime says so when the stage begins."""
        now = time.time()
        self._data_wait.begin(now)
        self.timeline.waiting(self.name, now)

    def _go_on(self) -> None:
        now = time.time()
        self._data_wait.end(now)
        self.timeline.working(self.name, now)

    def _begin_with(self, begun: bool) -> None:
        """The version of the present batch, which somebody who is gone may have begun."""
        self._batch_version = int(self._batches.counters["version"]) if begun else self._version()

    def _state_in_batch(self) -> dict[str, int | float]:
        return {**self.state(), "version": self._batch_version}

    async def _train(self, lease: Lease) -> None:
        self.training = True
        record = self._record(lease)
        updates = self._plan_batch(lease.table, self.batches).updates
        for update in updates:
            await self._update(lease, update)
        await self._finish(record, updates)

    async def _finish(self, record: BatchRecord | None, updates: tuple[UpdatePlan, ...]) -> None:
        """Stores and publishes what was trained, and only then lets the source replace its groups: see Admission. Where
        the publication goes on beside, the source counts them until it has arrived."""
        if record is not None and self._recorder is not None:
            self._recorder.write(replace(record, updates=updates), await self._ranks.logprobs())
        with self.timeline.span(self.name, "publish", version=self._batch_version + 1):
            await self._publish()
        self.batches += 1
        self._batches.finish(self.state())

    def _record(self, lease: Lease) -> BatchRecord | None:
        """The rows of a lease for people, if the present batch is kept."""
        if self._recorder is None or not self._recorder.keeps(self.batches):
            return None
        table = self._whole(lease)
        media, republished = stored_media(self._transport, table), tuple(self._staleness.republished)
        return BatchRecord(self.batches, self.updates + 1, self._batch_version, 1.0, table, (), media, republished)

    def _whole(self, lease: Lease) -> Table:
        """All columns of a lease's rows, for people."""
        role = self._plan.role(self.name)
        assert role is not None
        return self._transport.fetch(lease, sorted(role.reads))

    def _drop_stale(self, lease: Lease) -> bool:
        """Drops whole groups with a token beyond the bound and gives the rest back, so that the batch is refilled."""
        lag = self._lags(lease.table)
        stale = sorted(set(lease.table.groups[lag > self._staleness.bound].tolist()))
        if not stale or self._staleness.policy != "drop":
            self.max_lag = max(self.max_lag, int(lag.max(initial=0)))
            return False
        for group in stale:
            self._batches.dropped(group, "stale")
        self._transport.nack(lease)
        self._transport.drop(stale)
        return True

    def _lags(self, table: Table) -> IntArray:
        if "segments" not in table:
            return np.zeros(len(table), np.int64)
        return self._staleness.lags(table, self._batch_version)

    def _plan_batch(self, table: Table, number: int) -> BatchPlan:
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
            seed=derive_seed(self._seed, "batch", number),
            scale=self._staleness.scale(self._lags(table)),
        )

    async def _update(self, lease: Lease, update: UpdatePlan) -> None:
        started, before = time.monotonic(), self._generated()
        with self.timeline.span(self.name, "update"):
            sums, metrics = await self._ranks.train(lease, update, self.updates + 1)
        tokens = self._generated() - before
        self._count(sums, metrics, lease.table.select(update.rows), time.monotonic() - started, tokens)

    def _generated(self) -> int:
        return 0 if self._generated_tokens is None else self._generated_tokens()

    def _count(self, sums: Sums, metrics: Mapping[str, float], table: Table, seconds: float, tokens: int) -> None:
        """An update was made on the rows of a table, in so many seconds, while the engine generated some tokens."""
        self.updates += 1
        self.seconds += seconds
        self.trained_tokens += sums.tokens
        report = update_metrics(sums, metrics, table) | self._lag_metrics(table)
        report |= self._data_wait.metrics() | {f"queue/{name}": float(n) for name, n in self._transport.depth().items()}
        report["perf/train_tokens_per_s"] = sums.tokens / seconds
        if self._generated_tokens is not None:
            report["perf/tokens_during_update"] = float(tokens)
        report["train/version"] = float(self._batch_version)
        self._report(self.updates, report)

    def _lag_metrics(self, table: Table) -> dict[str, float]:
        if "segments" not in table or not len(table):
            return {}
        lag = self._lags(table)
        rows = np.bincount(lag, minlength=self._staleness.bound + 1)
        return {
            "rollout/lag": float(lag.mean()),
            "rollout/lag_max": float(lag.max()),
            "rollout/stale_rows": float((lag > self._staleness.bound).sum()),
            **{f"rollout/lag/{number}": float(share) for number, share in enumerate(rows / len(lag))},
        }

    def state(self) -> dict[str, int | float]:
        """Counters between two batches, as JSON values."""
        return {name: getattr(self, name) for name in COUNTERS}

    def restore(self, state: Mapping[str, int | float]) -> None:
        """Sets the counters to those of :meth:`state`."""
        for name in COUNTERS:
            setattr(self, name, state[name])

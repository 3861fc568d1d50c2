"""The actor role trains: one batch of groups per step, then a publication."""

import time
from collections.abc import Awaitable, Callable, Mapping

import numpy as np

from relax_core.api.algorithm import Algorithm, Loss
from relax_core.api.columns import Table
from relax_core.api.errors import EndOfStream, TrainingError
from relax_core.api.tokens import Tokens
from relax_core.api.trainer import Sums, Trainer
from relax_core.api.transport import Lease, Transport
from relax_core.config.run import BatchConfig
from relax_core.dataflow.batching import BatchPlan, UpdatePlan, micro_batches, plan_batch
from relax_core.dataflow.ledger import Ledger
from relax_core.dataflow.plan import OldPolicy, Plan
from relax_core.dataflow.seeds import derive_seed
from relax_core.dataflow.staleness import lags
from relax_core.metrics.batch import batch_metrics
from relax_core.roles.role import Progress, Role

COUNTERS = ("updates", "batches", "max_lag", "trained_tokens", "seconds")


class Actor(Role):
    """Trains on one batch per step.

    Args:
        plan: What the stage needs.
        batch: Sizes.
        algorithm: Whose ``loss`` is minimised.
        trainer: Holds the policy.
        transport: Rows in.
        ledger: Told which update used which group.
        version: The version the trainer has published last.
        publish: Publishes the weights after a batch.
        report: Receives ``(update, metrics)`` after each update.
        max_staleness: Groups with an older token are dropped.
        temperature: Temperature of every log-probability.
        seed: Base seed of the order within a batch.
    """

    name = "actor"

    def __init__(
        self,
        plan: Plan,
        batch: BatchConfig,
        algorithm: Algorithm,
        trainer: Trainer,
        transport: Transport,
        ledger: Ledger,
        version: Callable[[], int],
        publish: Callable[[], Awaitable[None]],
        report: Callable[[int, dict[str, float]], None],
        max_staleness: int,
        temperature: float,
        seed: int,
    ) -> None:
        self._plan = plan
        self._batch = batch
        self._algorithm = algorithm
        self._trainer = trainer
        self._transport = transport
        self._ledger = ledger
        self._version = version
        self._publish = publish
        self._report = report
        self._max_staleness = max_staleness
        self._temperature = temperature
        self._seed = seed
        role = plan.role(self.name)
        assert role is not None
        self._reads = sorted(role.reads)
        self.updates = 0
        self.batches = 0
        self.max_lag = 0
        self.trained_tokens = 0
        self.seconds = 0.0

    async def step(self) -> Progress:
        """Trains on the next batch if it is complete."""
        try:
            lease = self._transport.take(self.name, self._batch.tasks, self._batch.tasks)
        except EndOfStream:
            return Progress.DONE
        if lease is None:
            return Progress.IDLE
        if self._drop_stale(lease):
            return Progress.WORKED
        self._train(lease)
        await self._publish()
        return Progress.WORKED

    def _drop_stale(self, lease: Lease) -> bool:
        """Drops whole groups with a token beyond the bound and gives the rest back, so that the batch is refilled."""
        if "segments" not in lease.table:
            return False
        lag = lags(lease.table, self._version())
        stale = sorted(set(lease.table.groups[lag > self._max_staleness].tolist()))
        if not stale:
            self.max_lag = max(self.max_lag, int(lag.max(initial=0)))
            return False
        self._transport.nack(lease)
        self._transport.drop(stale)
        for group in stale:
            self._ledger.dropped(group, "stale")
        return True

    def _train(self, lease: Lease) -> None:
        started = time.monotonic()
        table = self._transport.fetch(lease, self._reads)
        plan = self._plan_batch(table)
        for update in plan.updates:
            self._update(table, update, started)
            started = time.monotonic()
        self._transport.ack(lease)
        for group in dict.fromkeys(table.groups.tolist()):
            self._ledger.trained(group, self.updates)
        self.batches += 1

    def _plan_batch(self, table: Table) -> BatchPlan:
        mask = table["loss_mask"]
        assert mask.offsets is not None
        trainable = np.add.reduceat(mask.values.astype(np.int64), mask.offsets[:-1])
        if "scored" in table:
            trainable = np.where(table["scored"].values, trainable, 0)
        return plan_batch(
            table["tokens"].lengths,
            trainable,
            table.groups,
            updates=self._batch.updates_per_batch,
            epochs=self._batch.epochs_per_batch,
            token_budget=self._batch.tokens_per_micro_batch,
            ranks=1,
            keep_together=self._plan.requirements.keep_together,
            seed=derive_seed(self._seed, "batch", self.batches),
        )

    def _update(self, table: Table, update: UpdatePlan, started: float) -> None:
        batches = micro_batches(table, update, 0, self._temperature)
        sums = self._trainer.accumulate(batches, self._objective)
        metrics = self._trainer.apply(sums.weight)
        self.updates += 1
        seconds = time.monotonic() - started
        self.seconds += seconds
        self.trained_tokens += sums.tokens
        rows = np.concatenate([np.empty(0, np.int64), *update.ranks[0]])
        report = {f"train/{name}": value for name, value in metrics.items()}
        report |= _means(sums) | batch_metrics(table.select(rows))
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

    def _objective(self, tokens: Tokens) -> Loss:
        """The algorithm's loss with the planned old policy in place, and the mismatch of engine and trainer beside it."""
        if self._plan.old is OldPolicy.CURRENT:
            tokens = tokens.with_column("old_logprobs", tokens.logprobs.detach())
        elif self._plan.old is OldPolicy.ROLLOUT:
            tokens = tokens.with_column("old_logprobs", tokens["rollout_logprobs"])
        loss = self._algorithm.loss(tokens)
        expected = tokens.rows if loss.unit != "token" else len(tokens)
        if loss.value.shape != (expected,) or loss.weight.shape != (expected,):
            raise TrainingError(
                f"algorithm: a loss per {loss.unit} needs value and weight of shape ({expected},), "
                f"got {tuple(loss.value.shape)} and {tuple(loss.weight.shape)}"
            )
        if "rollout_logprobs" not in tokens or self._plan.old is OldPolicy.ROLLOUT:
            return loss
        gap = tokens["old_logprobs"] - tokens["rollout_logprobs"]
        mismatch = {"mismatch/abs_logprob": gap.abs(), "mismatch/kl": gap.expm1() - gap}
        return Loss(loss.value, loss.weight, loss.unit, {**loss.metrics, **mismatch})


def _means(sums: Sums) -> dict[str, float]:
    means = {name: total / count for name, (total, count) in sums.metrics.items() if count}
    report = {name if "/" in name else f"train/{name}": value for name, value in means.items()}
    report["train/loss"] = sums.value / sums.weight if sums.weight else 0.0
    return report

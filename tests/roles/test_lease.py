"""Leases of roles whose work takes longer than a lease lasts."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from relax_core.api.algorithm import ADVANTAGES
from relax_core.api.columns import Column, ColumnSpec
from relax_core.api.context import ModelSource
from relax_core.api.errors import DeadlineExceeded, LeaseExpired
from relax_core.api.reward import Reward
from relax_core.api.rows import Sample, Score
from relax_core.api.sink import RunInfo
from relax_core.api.trainer import Sums
from relax_core.api.transport import Lease
from relax_core.config import RewardConfig
from relax_core.config.run import BatchConfig
from relax_core.dataflow import columns as core
from relax_core.dataflow.batching import UpdatePlan
from relax_core.dataflow.ledger import Ledger
from relax_core.dataflow.plan import Plan
from relax_core.dataflow.staleness import Staleness
from relax_core.metrics.hub import MetricHub
from relax_core.models.prompts import PromptCodec
from relax_core.roles.actor import Actor
from relax_core.roles.batches import BatchLog
from relax_core.roles.forward import ForwardRole
from relax_core.roles.lease import held
from relax_core.roles.ranks import Ranks
from relax_core.roles.reward import RewardRole
from relax_core.roles.role import Progress
from relax_core.roles.scoring import NamedReward, Scorer
from relax_core.transports.memory.config import MemoryTransportConfig
from relax_core.transports.memory.transport import MemoryTransport
from tests.roles.conftest import append_group, grpo_plan, until_done

BATCH = BatchConfig(tasks=2, samples_per_task=2, updates_per_batch=2)
DEADLINE = 60.0


class Slow:
    """A transport with leases of 30 ms on a clock that only ``work`` moves: by 20 ms when all leases are renewed."""

    def __init__(self, plan: Plan, ledger: Ledger) -> None:
        self.now = 0.0
        self.renewed: dict[str, float] = {}
        self.changed = threading.Condition()
        self.transport = MemoryTransport(MemoryTransportConfig(), clock=lambda: self.now)
        self.transport.open(plan.columns, plan.consumers)
        self._take, self.transport.take = self.transport.take, self.take  # type: ignore[method-assign]
        self._renew, self.transport.renew = self.transport.renew, self.renew  # type: ignore[method-assign]
        self.ids = [row for group in (0, 1) for row in append_group(self.transport, ledger, group)]

    def take(
        self, consumer: str, minimum: int = 1, maximum: int = 1, timeout: float = 0.0, seconds: float = 0.0
    ) -> Lease | None:
        return self._take(consumer, minimum, maximum, timeout, 0.03)

    def renew(self, lease: Lease, seconds: float) -> Lease:
        now = self.now
        renewed = self._renew(lease, seconds)
        with self.changed:
            self.renewed[lease.key] = now
            self.changed.notify_all()
        return renewed

    def work(self) -> None:
        for _ in range(3):
            with self.changed:
                assert self.changed.wait_for(self.all_renewed, DEADLINE), "nobody renews the lease"
                self.now += 0.02

    def all_renewed(self) -> bool:
        return all(self.renewed.get(key) == self.now for key in self.transport._index._holdings)

    def write(self, column: ColumnSpec, entries: Sequence[object]) -> None:
        self.transport.write(self.ids, [Column.of(column, entries)])  # type: ignore[arg-type]


class SlowRanks(Ranks):
    """Ranks that take longer than the lease lasts and come back with nothing."""

    size = 1

    def __init__(self, slow: Slow) -> None:
        self.slow = slow

    async def accumulate(self, lease: Lease, update: UpdatePlan, number: int, first: bool) -> None:
        self.slow.work()

    async def apply(self, number: int) -> tuple[Sums, Mapping[str, float]]:
        return Sums(), {}

    async def forward(self, lease: Lease, update: UpdatePlan, column: ColumnSpec, version: int) -> None:
        self.slow.work()
        self.slow.write(column, [np.zeros(length) for length in (4, 5, 4, 5)])


class SlowReward(Reward):
    """Judges at length."""

    def __init__(self, slow: Slow) -> None:
        self.slow = slow

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        self.slow.work()
        return [Score(float(index)) for index, _ in enumerate(samples)]


@pytest.fixture
def slow(ledger: Ledger) -> Slow:
    """Two groups of two rows, with two updates to be made of them."""
    return Slow(grpo_plan(updates_per_batch=2), ledger)


async def test_a_lease_ends_when_it_is_not_held_any_more(slow: Slow) -> None:
    lease = slow.transport.take("reward", 1, 2)
    assert lease is not None
    with held(slow.transport, lease):
        slow.work()
    slow.now += 0.04
    with pytest.raises(LeaseExpired):
        slow.transport.ack(lease)


def test_a_renewal_that_is_not_answered_in_time_is_made_again(slow: Slow) -> None:
    answered, late = slow.transport.renew, iter([True, True])

    def renew(lease: Lease, seconds: float) -> Lease:
        if next(late, False):
            raise DeadlineExceeded("renew: no answer")
        return answered(lease, seconds)

    slow.transport.renew = renew  # type: ignore[method-assign]
    lease = slow.transport.take("reward", 1, 2)
    assert lease is not None
    with held(slow.transport, lease):
        slow.work()
    slow.transport.ack(lease)


async def test_every_role_holds_its_rows_as_long_as_it_works(
    slow: Slow, ledger: Ledger, tiny_model_path: Path, tmp_path: Path
) -> None:
    plan, transport, ranks = grpo_plan(updates_per_batch=2), slow.transport, SlowRanks(slow)
    scorer = Scorer([NamedReward("slow", SlowReward(slow), RewardConfig())])
    hub = MetricHub({}, RunInfo("test", tmp_path, 1, {}))
    reward = RewardRole(transport, scorer, PromptCodec(ModelSource(tiny_model_path)), ledger, hub)
    await until_done(reward)
    hub.close()
    forward = ForwardRole("actor_fwd", core.OLD_LOGPROBS, ranks, lambda: 0, transport, BATCH)
    assert await forward.step() is Progress.WORKED
    slow.write(ADVANTAGES, [0.0] * 4)

    async def publish() -> None:
        slow.work()

    def report(update: int, metrics: dict[str, float]) -> None: ...

    actor = Actor(plan, BATCH, ranks, transport, BatchLog(ledger), lambda: 0, publish, report, Staleness(), 0)
    assert await actor.step() is Progress.WORKED
    assert ledger.counts()["trained"] == 2

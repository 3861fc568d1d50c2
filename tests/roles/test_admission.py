"""However groups end, stop, drop and come back: never more under way than the bound, never older than the bound."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.api.context import ModelSource
from relax_core.api.engine import SamplingParameters
from relax_core.api.rows import StopReason
from relax_core.api.transport import Consumer
from relax_core.config.run import RolloutConfig
from relax_core.dataflow.ledger import Ledger
from relax_core.dataflow.staleness import Admission, Staleness
from relax_core.models.prompts import PromptCodec
from relax_core.roles.rollout import Rollout
from relax_core.roles.source import Source
from relax_core.transports.memory.config import MemoryTransportConfig
from relax_core.transports.memory.transport import MemoryTransport
from tests.roles.conftest import Numbers, grpo_plan
from tests.roles.scripted_engine import Scripted, rest

ENDLESS = 10**9
ONE_ROW = 1


@pytest.fixture(scope="module")
def codec(tiny_model_path: Path) -> PromptCodec:
    return PromptCodec(ModelSource(tiny_model_path))


class Factory:
    """A producer that is never waited for, and a trainer that takes its time."""

    def __init__(self, codec: PromptCodec, batch: int, bound: int, surplus: int) -> None:
        self.codec, self.batch, self.bound, self.surplus = codec, batch, bound, surplus
        self.limit = (bound + 1) * batch + surplus
        self.version = 0
        self.lags: list[int] = []
        self.most = 0
        self.staleness = Staleness(bound)
        self._open()

    def _open(self) -> None:
        self.engine = Scripted(lambda request: ENDLESS)
        self.engine.version = self.version
        self.ledger = Ledger(lambda event: None)
        self.transport = MemoryTransport(MemoryTransportConfig())
        consumers = [
            Consumer("actor", frozenset({"tokens", "loss_mask", "segments"}), frozenset({"loss_mask", "segments"}))
        ]
        self.transport.open(grpo_plan().columns, consumers)
        admission = Admission(self.batch, self.bound, self.surplus)
        self.source = Source(Numbers(5), 0, self.ledger, admission)
        sampling, config = SamplingParameters(ENDLESS), RolloutConfig(surplus=self.surplus, protect_after=2)
        self.rollout = Rollout(
            self.source, self.engine, self.transport, self.codec, self.ledger, sampling, ONE_ROW, 0, None, 60.0, config
        )
        self.training: Any = None

    async def step(self) -> None:
        await self.rollout.step()
        self.check()
        await rest()

    async def end(self, which: int) -> None:
        """One of the running groups ends, in any order; first those that have a token at all."""
        await self.engine.tick()
        keys = sorted(self.engine.flights, key=lambda key: int(key.split("/")[0]))
        if keys:
            self.engine.flights[keys[which % len(keys)]].end(StopReason.STOP)
        await rest()
        await self.step()

    async def drop(self, which: int) -> None:
        """A group that is generated and not in training leaves."""
        taken = set() if self.training is None else set(self.training.table.groups.tolist())
        groups = [group for group, stage in self.ledger.pending.items() if stage == "generated" and group not in taken]
        if groups:
            group = groups[which % len(groups)]
            self.ledger.dropped(group, "test")
            self.transport.drop([group])

    async def train(self, which: int) -> None:
        if self.training is None:
            self.training = self.transport.take("actor", self.batch, self.batch)
            if self.training is not None:
                self.lags += self.staleness.lags(self.training.table, self.version).tolist()

    async def publish(self, which: int) -> None:
        if self.training is not None:
            self.version += 1
            self.engine.version = self.version
            for group in self.training.table.groups.tolist():
                self.ledger.trained(group, self.version)
            self.transport.ack(self.training)
            self.training = None

    async def restore(self, which: int) -> None:
        """The process is killed after a checkpoint; a new one publishes the same weights anew."""
        if self.training is not None:
            return  # checkpoints are taken between batches
        state = json.dumps([self.source.state(), self.ledger.state(), self.rollout.state()])
        rows = self.transport.snapshot()
        await self.rollout.close()
        self._open()
        source, ledger, rollout = json.loads(state)
        self.source.restore(source)
        self.ledger.restore(ledger)
        self.rollout.restore(rollout)
        self.transport.restore(rows)
        self.version += 1
        self.staleness.republished.append(self.version)
        self.engine.version = self.version

    def check(self) -> None:
        pending = self.ledger.pending
        self.most = max(self.most, len(pending))
        assert len(pending) <= self.limit
        running = sum(stage == "issued" for stage in pending.values())
        assert len(self.engine.flights) <= running


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["end", "end", "end", "train", "publish", "drop", "restore"]), st.integers(0, 9)),
    max_size=60,
)
SIZES = {"batch": st.integers(1, 3), "bound": st.integers(0, 2)}


@settings(max_examples=60)
@given(**SIZES, surplus=st.integers(0, 3), actions=ACTIONS)
async def test_never_more_groups_are_under_way_than_the_next_batches_and_the_surplus_take(
    codec: PromptCodec, batch: int, bound: int, surplus: int, actions: list[tuple[str, int]]
) -> None:
    factory = Factory(codec, batch, bound, surplus)
    await factory.step()
    for action, which in actions:
        await getattr(factory, action)(which)
        await factory.step()
    assert factory.most == factory.limit, "all that may run does"
    await factory.rollout.close()


@settings(max_examples=60)
@given(**SIZES, actions=ACTIONS)
async def test_groups_that_end_in_order_are_never_older_than_the_bound(
    codec: PromptCodec, batch: int, bound: int, actions: list[tuple[str, int]]
) -> None:
    factory = Factory(codec, batch, bound, surplus=0)
    await factory.step()
    for action, which in actions:
        await getattr(factory, action)(0 if action == "end" else which)
        await factory.step()
    assert max(factory.lags, default=0) <= bound
    await factory.rollout.close()


async def test_a_producer_that_is_much_faster_uses_the_whole_bound(codec: PromptCodec) -> None:
    factory = Factory(codec, batch=2, bound=2, surplus=0)
    await factory.step()
    for _ in range(8):
        for _ in range(12):
            await factory.end(0)
        await factory.train(0)
        await factory.publish(0)
        await factory.step()
    assert factory.lags[-4:] == [2, 2, 2, 2]
    await factory.rollout.close()

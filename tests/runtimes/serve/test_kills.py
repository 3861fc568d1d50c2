"""Roles killed between any two of their calls: no cluster, the same roles, proxies and state, and a death on demand."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from relax_algos.grpo import GRPO, GRPOConfig

from relax_core.api.columns import Column, ColumnSpec
from relax_core.api.engine import GenerateRequest, Generation, Health, SamplingParameters
from relax_core.api.reward import Reward
from relax_core.api.rows import Sample, Score, StopReason
from relax_core.api.trainer import Sums
from relax_core.api.transport import Lease
from relax_core.config import RewardConfig
from relax_core.config.run import BatchConfig, RolloutConfig, SamplingConfig, ServeConfig
from relax_core.dataflow.batching import UpdatePlan
from relax_core.dataflow.columns import REF_LOGPROBS
from relax_core.dataflow.ledger import Ledger, verify
from relax_core.dataflow.plan import Plan, derive_plan
from relax_core.dataflow.staleness import Admission, Staleness
from relax_core.models.prompts import PromptCodec
from relax_core.rewards.config import FormatRewardConfig
from relax_core.rewards.format import FormatReward
from relax_core.roles.actor import Actor
from relax_core.roles.advantages import Advantages
from relax_core.roles.forward import ForwardRole
from relax_core.roles.ranks import Ranks
from relax_core.roles.reward import RewardRole
from relax_core.roles.role import Progress, Role
from relax_core.roles.rollout import Rollout
from relax_core.roles.scoring import NamedReward, Scorer
from relax_core.roles.source import Source
from relax_core.roles.streaming import StreamingActor
from relax_core.runtimes.length import groups_needed
from relax_core.runtimes.serve.proxies import RemoteBatches, RemoteLedger, RemoteReporter, RemoteSource
from relax_core.runtimes.serve.state import RunState
from relax_core.runtimes.serve.updates import MadeUpdates, Result
from relax_core.transports.memory.config import MemoryTransportConfig
from relax_core.transports.memory.transport import MemoryTransport
from tests.roles.conftest import Numbers
from tests.roles.still_engine import StillEngine

UPDATES = 6
CALLS = 260
"""More calls than the roles make in a whole run in turns."""


@dataclass(frozen=True)
class Kind:
    """What kind of run dies.

    Args:
        batch: Sizes.
        algorithm: Decides which roles there are.
        bound: Staleness.
        rollout: Surplus.
    """

    batch: BatchConfig
    algorithm: GRPOConfig
    bound: int = 0
    rollout: RolloutConfig = field(default_factory=RolloutConfig)

    @property
    def plan(self) -> Plan:
        """Its plan; old log-probabilities are those of the engine."""
        return derive_plan(self.algorithm, self.batch.model_copy(update={"old": "rollout"}), SamplingConfig())

    @property
    def groups(self) -> int:
        """Groups that it trains on."""
        return groups_needed(UPDATES, self.batch)


IN_TURNS = Kind(BatchConfig(tasks=2, samples_per_task=2, updates_per_batch=2), GRPOConfig())
BESIDE = Kind(
    BatchConfig(tasks=2, samples_per_task=2, streaming=True),
    GRPOConfig(kl_coefficient=0.1),
    bound=1,
    rollout=RolloutConfig(surplus=1),
)
"""Streaming, with a reference, one version of staleness and a group of surplus."""


class Killed(BaseException):
    """A front is gone, in the middle of something."""


@dataclass
class Deaths:
    """Counts the calls of all fronts; at some of them the caller dies, before the call is made or after it.

    Args:
        at: Numbers of calls; even ones die before, odd ones after.
    """

    at: Iterable[int]
    calls: int = 0

    def gate(self) -> "Gate":
        """What one front calls through, as long as it lives."""
        return Gate(self)


@dataclass
class Gate:
    """Once its front is dead, whatever is left of it reaches nobody."""

    deaths: Deaths
    dead: bool = False

    def __call__(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        if self.dead:
            raise Killed
        number = self.deaths.calls
        self.deaths.calls += 1
        self.dead = number in self.deaths.at
        if self.dead and number % 2 == 0:
            raise Killed
        try:
            return function(*arguments, **keywords)
        finally:
            if self.dead:
                raise Killed


class Gated:
    """An object whose methods are called through a gate."""

    def __init__(self, target: Any, gate: Gate) -> None:
        self._target, self._gate = target, gate

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)
        return lambda *arguments, **keywords: self._gate(method, *arguments, **keywords)


class Dice(StillEngine):
    """An engine that takes no time: tokens are those of the request's seed, the version is the one published last."""

    def __init__(self, ranks: "Ledgered") -> None:
        self._ranks = ranks

    async def generate(self, request: GenerateRequest) -> Generation:
        tokens = tuple(np.random.default_rng(request.seed).integers(40, 90, 3).tolist())
        return Generation(
            request.key, tokens, np.zeros(3, np.float32), StopReason.LENGTH, ((0, self._ranks.publications),)
        )

    async def health(self) -> Health:
        return Health(True, 0, 0, 0)


@dataclass
class Ledgered:
    """What outlives every front: ranks that only write down what they trained on.

    Args:
        transport: Rows.
        updates_per_batch: Updates that a front may repeat.
    """

    transport: MemoryTransport
    updates_per_batch: int
    trained: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    accumulated: list[int] = field(default_factory=list)
    """Rows since the last update."""
    publications: int = 0
    unpublished: bool = False

    def __post_init__(self) -> None:
        self.updates = MadeUpdates(self.updates_per_batch)

    def accumulate(self, lease: Lease, update: UpdatePlan, number: int, first: bool) -> None:
        rows = [int(lease.table.ids[row]) for rank in update.ranks for part in rank for row in part]

        def compute() -> Sums:
            self.accumulated = [*([] if first else self.accumulated), *rows]
            return Sums(1.0, float(len(rows)), {}, len(rows))

        self.updates.accumulate(number, rows, first, compute)

    def apply(self, number: int) -> Result:
        def make(sums: Sums) -> Mapping[str, float]:
            self.trained.append((number, tuple(self.accumulated)))
            self.accumulated, self.unpublished = [], True
            return {"skipped": 0.0}

        return self.updates.apply(number, make)

    def forward(self, lease: Lease, column: ColumnSpec, version: int) -> None:
        mask = lease.table["loss_mask"]
        blank = [np.zeros(length) for length in mask.lengths]
        self.transport.write(lease.table.ids, [Column.of(column, blank)], version, lease.attempt > 1)

    def publish(self) -> int:
        self.publications += self.unpublished
        self.unpublished = False
        return self.publications


class GatedRanks(Ranks):
    """The ranks as a front that can die calls them."""

    size = 2

    def __init__(self, ranks: Ledgered, gate: Gate) -> None:
        self._ranks, self._gate = ranks, gate

    async def accumulate(self, lease: Lease, update: UpdatePlan, number: int, first: bool) -> None:
        self._gate(self._ranks.accumulate, lease, update, number, first)

    async def apply(self, number: int) -> Result:
        result: Result = self._gate(self._ranks.apply, number)
        return result

    async def forward(self, lease: Lease, update: UpdatePlan, column: ColumnSpec, version: int) -> None:
        self._gate(self._ranks.forward, lease, column, version)


class House:
    """A run without a cluster: what outlives the fronts, and how a front is made anew."""

    def __init__(self, codec: PromptCodec, deaths: Deaths, pattern: str, kind: Kind = IN_TURNS) -> None:
        self.kind, self.plan = kind, kind.plan
        self.events: list[Mapping[str, Any]] = []
        ledger = Ledger(self.events.append)
        admission = Admission(kind.batch.tasks, kind.bound, kind.rollout.surplus)
        source = Source(Numbers(50), 0, ledger, admission, None, kind.groups)
        self.state = RunState(source, ledger, UPDATES, lambda before, now: False, 100, ServeConfig())
        self.transport = MemoryTransport(MemoryTransportConfig())
        self.transport.open(self.plan.columns, self.plan.consumers)
        self.ranks = Ledgered(self.transport, self.plan.updates_per_batch)
        self.codec, self.deaths = codec, deaths
        config = FormatRewardConfig(pattern=pattern)
        self.scorer = Scorer([NamedReward("format", FormatReward(config, None), config)])

    def role(self, name: str) -> Role:
        """The role in a new front, which first takes back what the one before it held."""
        gate = self.deaths.gate()
        if name != "rollout":
            self.transport.reclaim(name)
        state: Any = lambda method, *arguments, wait=0.0: gate(getattr(self.state, method), *arguments)  # noqa: E731
        state.count = lambda name, amount=1: state("tell", "count", name, amount)
        transport: Any = Gated(self.transport, gate)
        builders: Mapping[str, Callable[[], Role]] = {
            "rollout": lambda: self._rollout(state, transport),
            "reward": lambda: RewardRole(
                transport, self.scorer, self.codec, RemoteLedger(state), RemoteReporter(state)
            ),
            "reference": lambda: ForwardRole(
                name, REF_LOGPROBS, GatedRanks(self.ranks, gate), lambda: 0, transport, self.kind.batch
            ),
            "advantages": lambda: Advantages(
                GRPO(self.kind.algorithm, None), self.plan.requirements, transport, self.kind.batch.tasks
            ),
            "actor": lambda: self._actor(state, transport, gate),
        }
        return builders[name]()

    def _rollout(self, state: Any, transport: Any) -> Role:
        source, ledger, sampling = RemoteSource(state), RemoteLedger(state), SamplingParameters(3)
        engine, settings = Dice(self.ranks), self.kind.rollout
        return Rollout(source, engine, transport, self.codec, ledger, sampling, 2, 0, None, 60, settings)

    def _actor(self, state: Any, transport: Any, gate: Gate) -> Role:
        async def publish() -> None:
            gate(lambda: self.state.published(self.ranks.publish(), {}))

        batches, ranks = RemoteBatches(state), GatedRanks(self.ranks, gate)
        counters = self.state.batches()[2]
        report = lambda update, metrics: state("report", update, metrics)  # noqa: E731
        version = lambda: state("version")  # noqa: E731
        staleness, batch = Staleness(self.kind.bound), self.kind.batch
        arguments: Any = (self.plan, batch, ranks, transport, batches, version, publish, report, staleness, 0)
        actor = StreamingActor(*arguments, grows=partial(state, "grows")) if batch.streaming else Actor(*arguments)
        actor.restore(counters)
        return actor

    async def run(self) -> int:
        """Steps all roles until each has seen the end; returns how many died."""
        names = [role.name for role in self.plan.roles if role.name != "source"]
        roles = {name: self.role(name) for name in names}
        ended: set[str] = set()
        deaths = 0
        for _ in range(100):
            for name in names:
                try:
                    progress = await roles[name].step()
                    if progress is Progress.BUSY:
                        await roles[name].settled()
                    if progress is Progress.DONE:
                        ended.add(name)
                except Killed:
                    deaths += 1
                    roles[name] = self.role(name)
            if ended == set(names):
                return deaths
        raise AssertionError(f"the run does not end: {self.state.counts()}, {self.transport.depth()}")


class EverySecond(Reward):
    """Abstains from tasks of odd numbers."""

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        return [Score(None if sample.task.index % 2 else 1.0) for sample in samples]


def _abstaining() -> Scorer:
    return Scorer([NamedReward("every_second", EverySecond(None, None), RewardConfig())])


def check(house: House) -> None:
    """Everything is accounted for, nothing is trained twice, and nothing is told twice."""
    counts = house.state.counts()
    assert verify(house.events) == counts
    assert (counts["trained"], counts["pending"]) == (house.kind.groups, 0)
    assert house.transport.depth()["groups"] == 0
    assert [number for number, _ in house.ranks.trained] == list(range(1, UPDATES + 1))
    rows = [row for _, part in house.ranks.trained for row in part]
    assert len(rows) == len(set(rows)) == 2 * house.kind.groups
    assert house.ranks.publications == UPDATES // house.plan.updates_per_batch == house.state.version()
    reports = [record.arguments[0] for record in house.state.drain(0.0) if record.kind == "report"]
    assert reports == list(range(1, UPDATES + 1))
    assert house.state.facts().counters["updates"] == UPDATES
    assert house.state.facts().counters["trained_tokens"] == 2 * house.kind.groups


def test_without_a_death(codec: PromptCodec) -> None:
    house = House(codec, Deaths(()), ".*")
    assert asyncio.run(house.run()) == 0
    check(house)
    assert 60 < house.deaths.calls < CALLS


def test_one_death_at_every_call(codec: PromptCodec) -> None:
    whole = House(codec, Deaths(()), ".*")
    asyncio.run(whole.run())
    for number in range(whole.deaths.calls):
        house = House(codec, Deaths((number,)), ".*")
        # Which scores are there at which step is not the same every time: a run may end before that call.
        assert asyncio.run(house.run()) == (number < house.deaths.calls), number
        check(house)
        assert house.ranks.trained == whole.ranks.trained, "the same rows in the same updates"


@pytest.mark.slow
def test_one_death_at_every_call_of_a_streaming_run(codec: PromptCodec) -> None:
    whole = House(codec, Deaths(()), ".*", BESIDE)
    assert asyncio.run(whole.run()) == 0
    check(whole)
    for number in range(whole.deaths.calls):
        house = House(codec, Deaths((number,)), ".*", BESIDE)
        assert asyncio.run(house.run()) == (number < house.deaths.calls), number
        check(house)
        assert house.state.facts().counters["max_lag"] <= BESIDE.bound


@settings(max_examples=30)
@given(at=st.sets(st.integers(0, 400), max_size=8))
def test_any_deaths_of_a_streaming_run(codec: PromptCodec, at: set[int]) -> None:
    house = House(codec, Deaths(at), ".*", BESIDE)
    asyncio.run(house.run())
    check(house)


@settings(max_examples=60)
@given(at=st.sets(st.integers(0, CALLS), max_size=8), pattern=st.sampled_from([".*", "[0-9].*"]))
def test_any_deaths(codec: PromptCodec, at: set[int], pattern: str) -> None:
    house = House(codec, Deaths(at), pattern)
    asyncio.run(house.run())
    check(house)


def test_dropped_groups_are_dropped_once(codec: PromptCodec) -> None:
    calls = House(codec, Deaths(()), ".*")
    calls.scorer = _abstaining()
    asyncio.run(calls.run())
    assert calls.state.counts()["dropped"] > 0
    for number in range(calls.deaths.calls):
        house = House(codec, Deaths((number,)), ".*")
        house.scorer = _abstaining()
        # Which scores are there at which step is not the same every time: a run may end before that call.
        assert asyncio.run(house.run()) == (number < house.deaths.calls), number
        check(house)
        assert house.ranks.trained == calls.ranks.trained

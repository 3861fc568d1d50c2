"""Ranks, state and transport that are lost at any moment: no cluster, and the weights of a run in peace."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relax_core.api.errors import RelaxError
from relax_core.api.trainer import Sums
from relax_core.api.transport import Lease
from relax_core.config.run import ServeConfig
from relax_core.dataflow.batching import UpdatePlan
from relax_core.dataflow.ledger import Ledger, verify
from relax_core.dataflow.staleness import Admission, Staleness
from relax_core.models.prompts import PromptCodec
from relax_core.roles.actor import Actor
from relax_core.roles.role import Progress, Role
from relax_core.roles.source import Source
from relax_core.runtimes.serve import ranks, remote_ranks, trainer_ranks
from relax_core.runtimes.serve.proxies import RemoteBatches
from relax_core.runtimes.serve.ranks import LeadingRank
from relax_core.runtimes.serve.recovery import (
    Boundaries,
    Boundary,
    StageLost,
    TrainerPoint,
)
from relax_core.runtimes.serve.remote_ranks import RemoteRanks
from relax_core.runtimes.serve.state import RunState
from relax_core.runtimes.serve.trainer_ranks import TrainerRanks
from relax_core.runtimes.serve.updates import MadeUpdates
from relax_core.transports.memory.config import MemoryTransportConfig
from relax_core.transports.memory.transport import MemoryTransport
from relax_core.transports.ray.calls import ActorLost
from tests.roles.conftest import Numbers
from tests.runtimes.serve.test_kills import IN_TURNS, UPDATES, Deaths, House

BATCH, PLAN = IN_TURNS.batch, IN_TURNS.plan

Weights = tuple[tuple[int, tuple[int, ...]], ...]
"""Every update that led to them, and its rows."""

MOMENTS = 100
"""More moments in the life of the ranks than a run has."""

SOON, AGAIN = (3, 8), 22
"""Moments until ranks die after the stage went back; and until the batch that is made again has been published."""


class Dead(ActorLost):
    """The ranks have just died."""


class Gone(BaseException):
    """State and transport are gone."""


@dataclass
class Hazard:
    """The moments at which something is lost.

    Args:
        at: Their numbers.
        loss: What is raised then.
    """

    at: frozenset[int]
    loss: type[BaseException]
    moments: int = 0
    armed: bool = False

    def __call__(self) -> None:
        if not self.armed:
            return
        self.moments += 1
        if self.moments - 1 in self.at:
            raise self.loss


class Rank(LeadingRank):
    """The leading rank of ranks whose weights are the list of what they were trained on."""

    def __init__(self, house: "Rebuilt", point: TrainerPoint, version: int, unpublished: bool) -> None:
        self._assignment: Any = house.assignment
        self._updates = MadeUpdates(PLAN.updates_per_batch, point.update, point.made)
        self._per_batch = PLAN.updates_per_batch
        self._house, self._unpublished = house, unpublished
        self._publications: Any = SimpleNamespace(
            publish=self._to_engines,
            settle=self._tell,
            version=version,
            take_turn=lambda: None,
            give_turn=lambda: None,
        )
        self._points: Any = SimpleNamespace(write=self._write)
        self._others: Any = []
        self._timeout = 1.0
        self.weights = house.saved[point.update]

    def accumulate_all(self, lease: Lease, update: UpdatePlan, number: int, first: bool) -> None:
        self._house.hazard()
        super().accumulate_all(lease, update, number, first)
        self._house.hazard()

    def accumulate(self, lease: Lease, update: UpdatePlan, number: int, first: bool) -> Sums:
        rows = [int(lease.table.ids[row]) for rank in update.ranks for part in rank for row in part]
        self._rows = [*([] if first else self._rows), *rows]
        return Sums(1.0, float(len(rows)), {}, len(rows))

    def apply_all(self, number: int) -> tuple[Sums, Mapping[str, float]]:
        self._house.hazard()
        result = super().apply_all(number)
        self._house.hazard()
        return result

    def _apply(self, denominator: float) -> Mapping[str, float]:
        self.weights = (*self.weights, (self._updates.last + 1, tuple(self._rows)))
        self._unpublished = True
        self._house.hazard()
        return {"skipped": 0.0}

    def _write(self, update: int, save: Any, state: Mapping[str, Any]) -> None:
        self._house.hazard()
        self._house.saved[update] = self.weights
        points = self._house.points
        points[update] = TrainerPoint(update, Path(), state["version"], state["made"])
        for old in sorted(points)[:-2]:
            del points[old]

    def _to_engines(self, beside: bool) -> None:
        self._house.hazard()
        self._publications.version += 1
        assert self._publications.version >= max(self._house.engines, default=0), "engines refuse an old version"
        self._house.state.staged(self._publications.version)
        self._house.hazard()
        known = self._house.engines.setdefault(self._publications.version, self.weights)
        assert known == self.weights, "a version has two meanings"
        self._house.gone()
        self._house.ranks.publications = self._publications.version
        self._tell()
        self._house.hazard()

    def _tell(self) -> None:
        self._house.state.published(self._publications.version, {})


class Points:
    """In memory, as :class:`TrainerPoints` finds them on disk: the last two."""

    def __init__(self, house: "Rebuilt") -> None:
        self._house = house

    def at(self, update: int) -> TrainerPoint | None:
        return self._house.points.get(update) if update else TrainerPoint(0)

    def beyond(self, update: int) -> TrainerPoint | None:
        newest = max(self._house.points, default=0)
        return self._house.points[newest] if newest > update else None

    def forget_beyond(self, update: int) -> None:
        for beyond in [each for each in self._house.points if each > update]:
            del self._house.points[beyond]


class Rebuilt(House):
    """A run whose ranks die, and which can go back.

    Args:
        codec: Of the prompts.
        at: Moments at which the ranks die.
        gone: Moments at which state and transport are gone, and what they had to tell was not heard.
        every: Batches between two points of the ranks.
    """

    def __init__(
        self,
        codec: PromptCodec,
        monkeypatch: pytest.MonkeyPatch,
        at: Collection[int] = (),
        gone: Collection[int] = (),
        every: int = 1,
    ) -> None:
        super().__init__(codec, Deaths(()), ".*")
        self.hazard, self.gone, self.life = Hazard(frozenset(at), Dead), Hazard(frozenset(gone), Gone), 0
        self.saved: dict[int, Weights] = {0: ()}
        self.points: dict[int, TrainerPoint] = {}
        self.engines: dict[int, Weights] = {}
        serve = SimpleNamespace(step_timeout=1.0, start_timeout=1.0, rank_timeout=1.0, recovery_every=every)
        self.assignment: Any = SimpleNamespace(
            plan=PLAN,
            run_id="run",
            config=SimpleNamespace(run=SimpleNamespace(serve=serve)),
            ranks=lambda front: 2,
            takes_turns=False,
            generates=True,
        )
        self.supervised = TrainerRanks(self.assignment, Points(self), None)  # type: ignore[arg-type]
        self.supervised.group = Group(self)  # type: ignore[assignment]
        for module in (remote_ranks, trainer_ranks):
            monkeypatch.setattr(module, "acall", self._acall)
        monkeypatch.setattr(ranks, "gather", lambda pending, method, timeout: [])
        monkeypatch.setattr(remote_ranks, "call", lambda rank, method: False)
        monkeypatch.setattr(remote_ranks, "find_actor", lambda name, namespace: self.living())
        self.rank: Rank | None = None

    async def start(self) -> None:
        """From here on everything may be lost."""
        await self.supervised.start(TrainerPoint(0), 0)
        await self.supervised.publish()
        self.boundaries = Boundaries(Boundary(0, False, self.state.checkpoint()))
        self.hazard.armed = self.gone.armed = True

    def begin(self, point: TrainerPoint, version: int, unpublished: bool) -> None:
        """The ranks begin a life."""
        self.life += 1
        self.rank = Rank(self, point, version, unpublished)

    def living(self) -> Rank:
        if self.rank is None:
            raise ActorLost("there are no ranks")
        return self.rank

    async def _acall(self, rank: Any, method: str, *arguments: Any, timeout: float) -> Any:
        if rank is not self.rank:
            raise ActorLost("these ranks are dead")
        self.gone()
        try:
            answer = getattr(rank, method)(*arguments)
        except Dead:
            self.rank = None
            await self._bring_back()
            raise
        self.gone()
        return answer

    async def _bring_back(self) -> None:
        """What the supervisor does when it sees that the ranks are dead; again, if they die before they serve."""
        while self.rank is None:
            with suppress(ActorLost):
                await self.supervised.restart(Asked(self.state), RelaxError("dead"))  # type: ignore[arg-type]

    def _actor(self, state: Any, transport: Any, gate: Any) -> Role:
        house = self

        class Client:
            def __call__(self, method: str, *arguments: Any, wait: float = 0.0) -> Any:
                if method == "life":
                    return house.life
                return state(method, *arguments)

        remote = RemoteRanks(self.assignment, "actor", Client())  # type: ignore[arg-type]

        async def publish() -> None:
            await remote.publish(False)

        report = lambda update, metrics: state("report", update, metrics)  # noqa: E731
        version = lambda: state("version")  # noqa: E731
        actor = Actor(PLAN, BATCH, remote, transport, RemoteBatches(state), version, publish, report, Staleness(), 0)
        actor.restore(self.state.batches()[2])
        return actor

    def roles(self) -> list[Role]:
        """Of all fronts, started anew."""
        return [self.role(name) for name in ("rollout", "reward", "advantages", "actor")]

    def hear(self) -> None:
        """The controller takes down the boundaries that it is told."""
        self.gone()
        for record in self.state.drain(0.0):
            if record.kind == "boundary":
                self.boundaries.add(Boundary(*record.arguments), Points(self))  # type: ignore[arg-type]

    async def go_back(self) -> None:
        """State and transport are lost, and whatever else is lost meanwhile."""
        while True:
            with suppress(Gone, StageLost, ActorLost):
                await self._back_at_boundary()
                return

    async def _back_at_boundary(self) -> None:
        standing = await self.supervised.standing() if self.rank is not None else None
        boundary = self.boundaries.newest(standing, Points(self))  # type: ignore[arg-type]
        version = self.boundaries.claim_version()
        ledger = Ledger(self.events.append)
        source = Source(Numbers(50), 0, ledger, Admission(BATCH.tasks, 0), None, IN_TURNS.groups)
        self.state = RunState(source, ledger, UPDATES, lambda before, now: False, 100, ServeConfig())
        self.state.rewind(boundary.stage)
        self.transport = MemoryTransport(MemoryTransportConfig())
        self.transport.open(PLAN.columns, PLAN.consumers)
        self.supervised.points.forget_beyond(boundary.update)
        if standing != boundary.update:
            point = self.supervised.points.at(boundary.update)
            assert point is not None
            await self.supervised.start(point, version)
        await self.supervised.publish()
        self.boundaries.forget_beyond(boundary)


class Asked:
    """The state of a run as whoever holds no event loop up asks it."""

    def __init__(self, state: RunState) -> None:
        self._state = state

    async def ask(self, method: str, *arguments: Any) -> Any:
        return getattr(self._state, method)(*arguments)


class Group:
    """The ranks as a supervisor has them."""

    def __init__(self, house: Rebuilt) -> None:
        self._house = house

    @property
    def leader(self) -> Rank:
        return self._house.living()

    async def lost(self) -> None:
        return None

    async def kill(self) -> None:
        self._house.rank = None

    async def start(self, policy: Any, point: TrainerPoint, version: int, unpublished: bool, probe: Any) -> None:
        self._house.begin(point, version, unpublished)


async def trained(house: Rebuilt, losses: Collection[int] = ()) -> Weights:
    """Runs to the end, with state and transport lost after some rounds; the weights."""
    await house.start()
    roles = house.roles()
    for turn in range(200):
        try:
            for role in roles:
                if await role.step() is Progress.BUSY:
                    await role.settled()
            house.hear()
            lost = turn in losses
        except (Gone, StageLost):
            lost = True
        if lost:
            await house.go_back()
            roles = house.roles()
        if house.state.counts()["trained"] == UPDATES:
            return house.living().weights
    raise AssertionError(f"the run does not end: {house.state.counts()}, {house.transport.depth()}")


def check(house: Rebuilt, weights: Weights) -> None:
    """The weights are those of every update in order, made once with rows of its own, and the ledger proves it."""
    assert [number for number, _ in weights] == list(range(1, UPDATES + 1))
    rows = [row for _, part in weights for row in part]
    assert len(rows) == len(set(rows)) == 2 * UPDATES
    assert verify(house.events) == house.state.counts()
    assert house.engines[max(house.engines)] == weights


@pytest.fixture
def rebuilt(codec: PromptCodec, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rebuilt]:
    """``rebuilt(at, gone, every)``: a run that loses something at some moments."""
    return partial(Rebuilt, codec, monkeypatch)


def test_ranks_that_die_at_any_moment_come_back_to_the_same_weights(rebuilt: Callable[..., Rebuilt]) -> None:
    peace = rebuilt()
    weights = asyncio.run(trained(peace))
    check(peace, weights)
    assert UPDATES < peace.hazard.moments < MOMENTS
    for moment in range(peace.hazard.moments):
        house = rebuilt([moment])
        assert asyncio.run(trained(house)) == weights, moment
        check(house, weights)
        assert house.life == 2
        assert sorted(house.engines) == sorted(peace.engines), "no version more than without a death"


@pytest.mark.parametrize("every", [1, 0])
def test_a_state_that_is_gone_at_any_moment_and_what_is_lost_soon_after(
    rebuilt: Callable[..., Rebuilt], every: int
) -> None:
    peace = rebuilt(every=every)
    weights = asyncio.run(trained(peace))
    for moment in range(peace.gone.moments):
        deaths = (((), {moment, moment + AGAIN}), *(({moment + later}, {moment}) for later in SOON))
        for at, gone in deaths:
            house = rebuilt(at, gone, every)
            assert asyncio.run(trained(house)) == weights, (at, gone)
            check(house, weights)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.sets(st.integers(0, MOMENTS), max_size=6),
    losses=st.sets(st.integers(0, 20), max_size=4),
    gone=st.sets(st.integers(0, MOMENTS), max_size=4),
    every=st.integers(0, 2),
)
def test_any_deaths_and_losses(
    rebuilt: Callable[..., Rebuilt], at: set[int], losses: set[int], gone: set[int], every: int
) -> None:
    weights = asyncio.run(trained(rebuilt()))
    house = rebuilt(at, gone, every)
    assert asyncio.run(trained(house, losses)) == weights
    check(house, weights)

"""Ranks, state and transport that are lost at any moment: no cluster, and the weights of a run in peace."""

import asyncio
import json
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relax_core.api.errors import RelaxError, TrainingError
from relax_core.api.trainer import Sums
from relax_core.api.transport import Lease
from relax_core.checkpoint.store import CheckpointStore
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
    TrainerPoint,
    TrainerPoints,
    recovery_points,
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


class Dead(ActorLost):
    """The ranks have just died."""


@dataclass
class Hazard:
    """The moments at which the ranks die.

    Args:
        at: Their numbers.
    """

    at: frozenset[int]
    moments: int = 0
    armed: bool = False

    def __call__(self) -> None:
        if not self.armed:
            return
        self.moments += 1
        if self.moments - 1 in self.at:
            raise Dead("the ranks are dead")


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
        self._house.points[update] = TrainerPoint(update, Path(), state["version"], state["made"])

    def _to_engines(self, beside: bool) -> None:
        self._house.hazard()
        self._publications.version += 1
        self._house.state.staged(self._publications.version)
        self._house.hazard()
        known = self._house.engines.setdefault(self._publications.version, self.weights)
        assert known == self.weights, "a version has two meanings"
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
        known = sorted(self._house.points)[-2:]
        return TrainerPoint(0) if not update else self._house.points[update] if update in known else None

    def beyond(self, update: int) -> TrainerPoint | None:
        newest = max(self._house.points, default=0)
        return self._house.points[newest] if newest > update else None


class Rebuilt(House):
    """A run whose ranks die, and which can go back.

    Args:
        codec: Of the prompts.
        at: Moments at which the ranks die.
    """

    def __init__(self, codec: PromptCodec, monkeypatch: pytest.MonkeyPatch, at: frozenset[int] = frozenset()) -> None:
        super().__init__(codec, Deaths(()), ".*")
        self.hazard, self.life = Hazard(at), 0
        self.saved: dict[int, Weights] = {0: ()}
        self.points: dict[int, TrainerPoint] = {}
        self.engines: dict[int, Weights] = {}
        serve = SimpleNamespace(step_timeout=1.0, start_timeout=1.0, rank_timeout=1.0, recovery_every=1)
        self.assignment: Any = SimpleNamespace(
            plan=PLAN,
            run_id="run",
            config=SimpleNamespace(run=SimpleNamespace(serve=serve)),
            ranks=lambda front: 2,
            takes_turns=False,
        )
        points: Any = Points(self)
        self.supervised = TrainerRanks(self.assignment, points, None)
        self.supervised.group = Group(self)  # type: ignore[assignment]
        for module in (remote_ranks, trainer_ranks):
            monkeypatch.setattr(module, "acall", self._acall)
        monkeypatch.setattr(ranks, "gather", lambda pending, method, timeout: [])
        monkeypatch.setattr(remote_ranks, "call", lambda rank, method: False)
        monkeypatch.setattr(remote_ranks, "find_actor", lambda name, namespace: self.living())
        self.rank: Rank | None = None
        self.boundaries = Boundaries(Boundary(0, False, self.state.checkpoint()))

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
        try:
            return getattr(rank, method)(*arguments)
        except Dead:
            self.rank = None
            await self._bring_back()
            raise

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

    def hear(self) -> None:
        """The controller takes down the boundaries that it is told."""
        for record in self.state.drain(0.0):
            if record.kind == "boundary":
                self.boundaries.add(Boundary(*record.arguments), Points(self))  # type: ignore[arg-type]

    async def go_back(self) -> None:
        """State and transport are lost."""
        standing = await self.supervised.standing() if self.rank is not None else None
        boundary = self.boundaries.newest(standing, Points(self))  # type: ignore[arg-type]
        latest = self.boundaries.last().stage["versions"]["last"]
        ledger = Ledger(self.events.append)
        source = Source(Numbers(50), 0, ledger, Admission(BATCH.tasks, 0), None, IN_TURNS.groups)
        self.state = RunState(source, ledger, UPDATES, lambda before, now: False, 100, ServeConfig())
        self.state.rewind(boundary.stage)
        self.transport = MemoryTransport(MemoryTransportConfig())
        self.transport.open(PLAN.columns, PLAN.consumers)
        if standing != boundary.update:
            point = self.supervised.points.at(boundary.update)
            assert point is not None
            self.begin(point, latest + 1, True)
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
    house.begin(TrainerPoint(0), 0, True)
    await house.supervised.publish()
    house.hazard.armed = True
    names = ("rollout", "reward", "advantages", "actor")
    roles = {name: house.role(name) for name in names}
    for turn in range(200):
        for name in names:
            if await roles[name].step() is Progress.BUSY:
                await roles[name].settled()
        house.hear()
        if house.state.counts()["trained"] == UPDATES:
            return house.living().weights
        if turn in losses:
            await house.go_back()
            roles = {name: house.role(name) for name in names}
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
    """``rebuilt(at)``: a run whose ranks die at some moments."""
    return lambda at=(): Rebuilt(codec, monkeypatch, frozenset(at))


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


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.sets(st.integers(0, MOMENTS), max_size=6), losses=st.sets(st.integers(0, 20), max_size=4))
def test_any_deaths_and_losses(rebuilt: Callable[..., Rebuilt], at: set[int], losses: set[int]) -> None:
    weights = asyncio.run(trained(rebuilt()))
    house = rebuilt(at)
    assert asyncio.run(trained(house, losses)) == weights
    check(house, weights)


def point(directory: Path, update: int, **state: Any) -> None:
    recovery_points(directory).write(update, lambda policy: None, state)


def test_points_of_the_trainer_are_those_on_disk(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(tmp_path / "checkpoints", 5)
    points = TrainerPoints(TrainerPoint(4), tmp_path, checkpoints)
    assert (points.at(4), points.at(6), points.beyond(4)) == (TrainerPoint(4), None, None)
    checkpoints.write(6, lambda policy: None, {"version": 3})
    for update in (8, 10, 12):
        point(tmp_path, update, version=update // 2, made=[])
    six, twelve = points.at(6), points.beyond(10)
    assert six is not None and six.version is None and six.policy is not None
    assert points.at(8) is None, "two are kept"
    assert twelve is not None and (twelve.update, twelve.version) == (12, 6)
    assert points.beyond(12) is None


def test_the_stage_goes_back_to_where_the_trainer_is_or_can_be(tmp_path: Path) -> None:
    points = TrainerPoints(TrainerPoint(0), tmp_path, CheckpointStore(tmp_path / "checkpoints", 2))
    boundaries = Boundaries(Boundary(0, False, {}))
    for update in range(1, 6):
        if update in (2, 4):
            point(tmp_path, update, version=update, made=[])
        boundaries.add(Boundary(update, False, {"update": update}), points)
    assert boundaries.newest(5, points).update == 5
    assert boundaries.newest(None, points).update == 4
    assert boundaries.newest(6, points).update == 4, "the trainer is beyond everything that is known"
    boundaries.forget_beyond(boundaries.newest(None, points))
    assert boundaries.last().update == 4
    shutil.rmtree(tmp_path / "recovery")
    assert boundaries.newest(None, points) == Boundary(0, False, {})


def made(updates: MadeUpdates, number: int, rows: Collection[int], sums: Sums) -> Any:
    """The result of an update that is made if it has not been."""
    updates.accumulate(number, rows, True, lambda: sums)
    return updates.apply(number, lambda summed: {"grad_norm": float("inf")})


def test_results_of_updates_survive_on_disk_as_they_are() -> None:
    sums = Sums(float("nan"), 0.1, {"ratio": (1 / 3, 2.0)}, 7)
    updates = MadeUpdates(2)
    made(updates, 1, (4, 5), sums)
    other = MadeUpdates(2, updates.last, json.loads(json.dumps(updates.state(), allow_nan=False)))
    back, applied = made(other, 1, (4, 5), Sums())
    assert repr(back) == repr(sums)
    assert applied == {"grad_norm": float("inf")}
    with pytest.raises(TrainingError, match="other rows"):
        made(other, 1, (4, 6), Sums())
    with pytest.raises(TrainingError, match="made already"):
        made(MadeUpdates(2, 3), 1, (4, 5), Sums())

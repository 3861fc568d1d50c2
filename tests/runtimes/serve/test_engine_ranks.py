"""Engines' ranks are replaced one by one, beside each other, as often as is allowed."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from relax_core.api.errors import RelaxError, WeightSyncError
from relax_core.api.weights import Manifest
from relax_core.metrics.timeline import Timeline
from relax_core.runtimes.serve import engine, engines
from relax_core.runtimes.serve.engine import EngineRank
from relax_core.runtimes.serve.engines import EngineRanks
from relax_core.runtimes.serve.restarts import Restarts, TooManyLosses
from relax_core.transports.ray.calls import ActorLost
from tests.fleet.scripted import Scripted

SERVE = SimpleNamespace(start_timeout=10.0, rank_timeout=1.0)


class Ended(Exception):
    """The process of a rank has ended."""


class Cluster:
    """Actors as names that live or are dead, in place of Ray; and the state of a run, which is told of them."""

    def __init__(self) -> None:
        self.dead: set[str] = set()
        self.started: list[str] = []
        self.told: list[tuple[Any, ...]] = []
        self.failures: dict[str, list[RelaxError]] = {}
        self.troubles: dict[str, str | RelaxError] = {}
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.state_is_gone = False

    def start_actor(self, kind: type, name: str, *arguments: Any, **options: Any) -> str:
        self.started.append(name)
        self.dead.discard(name)
        return name

    async def kill_actor(self, actor: str, name: str, namespace: str) -> None:
        self.dead.add(name)

    async def acall(self, actor: str, method: str, *arguments: Any, timeout: float = 0.0) -> Any:
        if method == "start":
            await self.may_start.wait()
            rank, _, _ = actor.partition("-life-")
            if self.failures.get(rank):
                raise self.failures[rank].pop()
            return frozenset()
        if actor in self.dead:
            raise ActorLost(f"{actor} is dead")
        if method == "trouble":
            trouble = self.troubles.get(actor, "")
            if isinstance(trouble, RelaxError):
                raise trouble
            return trouble

    async def ask(self, *told: Any) -> None:
        if self.state_is_gone:
            raise ActorLost("there is no state now")
        self.told.append(told)


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    for name in ("start_actor", "kill_actor", "acall"):
        monkeypatch.setattr(engines, name, getattr(cluster, name))
    return cluster


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture
async def ranks(cluster: Cluster, events: list[str]) -> EngineRanks:
    config = SimpleNamespace(run=SimpleNamespace(serve=SERVE))
    assignment: Any = SimpleNamespace(config=config, run_id="run", device="cpu", engines=["engine-0", "engine-1"])
    restarts = Restarts(2, 10, lambda name, message: events.append(f"{name}: {message}"), lambda name, amount: None)
    ranks = EngineRanks(assignment, SimpleNamespace(ask=cluster.ask), restarts)  # type: ignore[arg-type]
    await ranks.start()
    return ranks


async def until(look: Callable[[], Awaitable[None]], condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await look()
            await asyncio.sleep(0)


async def test_a_dead_engine_is_replaced_beside_the_others(
    cluster: Cluster, ranks: EngineRanks, events: list[str]
) -> None:
    assert cluster.told == [("alive", "engine-0", 1), ("alive", "engine-1", 1)]
    cluster.may_start.clear()
    cluster.dead |= {"engine-0-life-1"}
    await until(ranks.look, lambda: "engine-0-life-2" in cluster.started)
    cluster.dead |= {"engine-1-life-1"}
    await until(ranks.look, lambda: "engine-1-life-2" in cluster.started)
    assert len(cluster.told) == 2, "both are still starting"
    cluster.may_start.set()
    await until(ranks.look, lambda: len(events) == 2)
    assert sorted(cluster.told[2:]) == [("alive", "engine-0", 2), ("alive", "engine-1", 2)]
    for name, event in zip(("engine-0", "engine-1"), sorted(events), strict=True):
        assert event.startswith(f"restarted: {name}, after ") and event.endswith(f"s: {name}-life-1 is dead")


@pytest.mark.parametrize("trouble", ["vLLM failed: out of memory", RelaxError("the engine process has ended")])
async def test_an_engine_that_lives_and_will_not_serve_again_is_replaced(
    cluster: Cluster, ranks: EngineRanks, events: list[str], trouble: str | RelaxError
) -> None:
    for _ in range(3):
        await ranks.look()
    assert cluster.started == ["engine-0-life-1", "engine-1-life-1"]
    cluster.troubles["engine-0-life-1"] = trouble
    await until(ranks.look, lambda: len(events) == 1)
    assert cluster.started[2:] == ["engine-0-life-2"]
    assert cluster.dead == {"engine-0-life-1"}
    assert events[0].endswith(f"s: {trouble}")


async def test_a_life_that_fails_at_its_start_counts(cluster: Cluster, ranks: EngineRanks, events: list[str]) -> None:
    cluster.failures["engine-1"] = [WeightSyncError("the newest weights do not arrive")]
    cluster.dead |= {"engine-1-life-1"}
    await until(ranks.look, lambda: ("alive", "engine-1", 3) in cluster.told)
    assert events[1].endswith("the newest weights do not arrive")


async def test_an_engine_that_begins_while_the_state_is_gone_is_announced_to_the_next(
    cluster: Cluster, ranks: EngineRanks, events: list[str]
) -> None:
    cluster.state_is_gone = True
    cluster.dead |= {"engine-0-life-1"}
    await until(ranks.look, lambda: len(events) == 1)
    for _ in range(3):
        await ranks.look()
    cluster.state_is_gone = False
    cluster.told.clear()
    for _ in range(3):
        await ranks.look()
    assert cluster.told == [("alive", "engine-0", 2)], "a state that is back hears of it once"
    cluster.told.clear()
    await ranks.announce()
    assert cluster.told == [("alive", "engine-0", 2), ("alive", "engine-1", 1)]
    assert len(events) == 1, "it was started once"


async def test_an_engine_that_dies_too_often_ends_the_run(cluster: Cluster, ranks: EngineRanks) -> None:
    cluster.failures["engine-0"] = [ActorLost(f"death {number}") for number in (3, 2)]
    cluster.dead |= {"engine-0-life-1"}
    with pytest.raises(TooManyLosses, match=r"engine-0 was lost 3 times, serve.restarts is 2; the last time: death 3"):
        await until(ranks.look, lambda: False)


@pytest.mark.parametrize("state_is_gone", [False, True])
async def test_an_engine_that_cannot_take_a_publication_over_ends(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, state_is_gone: bool
) -> None:
    def exit_actor() -> None:
        raise Ended

    monkeypatch.setattr(engine.ray.actor, "exit_actor", exit_actor)
    cluster.state_is_gone = state_is_gone
    rank = EngineRank(None, "engine-1")  # type: ignore[arg-type]
    refusing = Scripted(1)
    refusing.refuses = True
    rank._engine, rank._timeline = refusing, Timeline(lambda span: None)
    rank._state = SimpleNamespace(ask=cluster.ask)  # type: ignore[assignment]
    with pytest.raises(Ended):
        await rank.update(Manifest(1, {}), [])
    told = ("tell", "event", "engine_failed", "engine-1: engine 1 has no room")
    assert cluster.told == ([] if state_is_gone else [told])

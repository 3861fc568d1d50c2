"""Ranks serve together or not at all, and each of their lives has processes of its own names."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relax_core.api.errors import RelaxError
from relax_core.runtimes.serve import rank_group
from relax_core.runtimes.serve.rank_group import RankGroup
from relax_core.transports.ray.calls import ActorLost


class Cluster:
    """Actors as names, in place of Ray."""

    def __init__(self) -> None:
        self.alive: set[str] = set()
        self.fails: list[RelaxError] = []

    def start_actor(self, kind: type, name: str, *arguments: Any, **options: Any) -> str:
        assert name not in self.alive, "the name is taken"
        self.alive.add(name)
        return name

    async def kill_actor(self, actor: str, name: str, namespace: str) -> None:
        assert actor == name
        self.alive.discard(name)

    async def acall(self, actor: str, method: str, *arguments: Any, timeout: float) -> Any:
        if actor not in self.alive:
            raise ActorLost(f"{actor} is dead")
        if method == "lead" and self.fails:
            raise self.fails.pop()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    for name in ("start_actor", "kill_actor", "acall"):
        monkeypatch.setattr(rank_group, name, getattr(cluster, name))
    return cluster


@pytest.fixture
def group(cluster: Cluster, tmp_path: Path) -> RankGroup:
    run = SimpleNamespace(serve=SimpleNamespace(start_timeout=5.0, rank_timeout=1.0))
    assignment: Any = SimpleNamespace(run_id="run", directory=tmp_path, device="cpu", config=SimpleNamespace(run=run))
    return RankGroup(assignment, "actor", (object, object))


async def test_lives_are_counted_when_they_begin_to_serve(cluster: Cluster, group: RankGroup) -> None:
    await group.start(None)
    assert (group.life, cluster.alive) == (1, {"actor-0-life-1", "actor-1-life-1"})
    cluster.alive.discard("actor-1-life-1")
    lost = await group.lost()
    assert str(lost) == "actor-1: actor-1-life-1 is dead"
    await group.kill()
    assert not cluster.alive
    await group.start(None)
    assert (group.life, group.leader) == (2, "actor-0-life-2")
    assert await group.lost() is None


async def test_ranks_that_could_not_begin_do_not_serve(cluster: Cluster, group: RankGroup) -> None:
    """Nobody has heard of their life, so that the next ranks may have its names."""
    cluster.fails = [RelaxError("no memory")]
    with pytest.raises(RelaxError, match="no memory"):
        await group.start(None)
    assert group.life == 0
    assert str(await group.lost()) == "actor: was not started to the end"
    with pytest.raises(ActorLost, match="actor-0: is being started"):
        _ = group.leader
    await group.kill()
    await group.start(None)
    assert (group.life, group.leader) == (1, "actor-0-life-1")

"""Who calls an engine's rank meets it in a life in which it serves, and in no other."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from relax_core.api.errors import DeadlineExceeded, RelaxError
from relax_core.runtimes.serve import engine
from relax_core.runtimes.serve.engine import RemoteEngine
from relax_core.transports.ray.calls import ActorLost

NAME = "engine-0"


class Cluster:
    """Ranks by life: those that serve, and one that has begun and still loads. The state is told late of a death."""

    def __init__(self) -> None:
        self.known, self.serving, self.loading = 1, 1, 0
        self.calls: list[str] = []
        self.waited = 0
        self.state_is_gone = False

    def kill(self) -> None:
        self.serving, self.loading = 0, self.known + 1

    def loaded(self) -> None:
        self.known = self.serving = self.loading
        self.loading = 0

    async def ask(self, method: str, name: str, above: int, timeout: float, wait: float) -> int:
        if self.state_is_gone:
            raise ActorLost("there is no state now")
        if self.known <= above and timeout:
            self.waited += 1
            if self.loading:
                self.loaded()
        return self.known

    async def afind_actor(self, name: str, namespace: str) -> str:
        if name not in (self._process(self.serving), self._process(self.loading)):
            raise ActorLost(f"there is no actor {name!r} now")
        return name

    async def acall(self, actor: str, method: str, *arguments: Any, timeout: float) -> None:
        self.calls.append(actor)
        if actor == self._process(self.loading):
            raise RelaxError("still loading")
        if actor != self._process(self.serving):
            raise ActorLost(f"{actor} is dead")

    def _process(self, life: int) -> str:
        return f"{NAME}-life-{life}"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    for name in ("afind_actor", "acall"):
        monkeypatch.setattr(engine, name, getattr(cluster, name))
    return cluster


@pytest.fixture
def remote(cluster: Cluster) -> Callable[[bool], RemoteEngine]:
    run = SimpleNamespace(
        timeouts=SimpleNamespace(weight_sync=5.0), serve=SimpleNamespace(start_timeout=5.0, rank_timeout=1.0)
    )
    assignment: Any = SimpleNamespace(run_id="run", config=SimpleNamespace(run=run))
    state: Any = SimpleNamespace(ask=cluster.ask)
    return lambda patient: RemoteEngine(assignment, state, NAME, patient=patient)


@pytest.mark.parametrize("known_before", [True, False])
async def test_one_that_waits_meets_the_next_life_when_it_serves(
    cluster: Cluster, remote: Callable[[bool], RemoteEngine], known_before: bool
) -> None:
    """Also one who comes new after a death that the state has not heard of yet, while the next life loads."""
    engine = remote(True)
    if known_before:
        await engine.pause()
    cluster.kill()
    await engine.pause()
    assert cluster.calls[-1] == f"{NAME}-life-2"
    assert cluster.waited == 1
    cluster.kill()
    await engine.pause()
    assert cluster.calls[-1] == f"{NAME}-life-3"


@pytest.mark.parametrize("known_before", [True, False])
async def test_one_that_does_not_wait_hears_of_the_loss(
    cluster: Cluster, remote: Callable[[bool], RemoteEngine], known_before: bool
) -> None:
    engine = remote(False)
    if known_before:
        await engine.pause()
    cluster.kill()
    for _ in range(2):
        with pytest.raises(ActorLost):
            await engine.pause()
    assert cluster.waited == 0
    cluster.loaded()
    await engine.pause()


async def test_a_life_that_does_not_begin_is_waited_for_once(
    cluster: Cluster, remote: Callable[[bool], RemoteEngine]
) -> None:
    engine = remote(True)
    cluster.kill()
    cluster.loading = 0
    with pytest.raises(DeadlineExceeded, match=r"engine-0 is dead, and its next life has not begun within 5 s"):
        await engine.pause()


async def test_without_a_state_nobody_waits(cluster: Cluster, remote: Callable[[bool], RemoteEngine]) -> None:
    """Whoever brings the state back ends what waits; it must not go round and round meanwhile."""
    cluster.kill()
    cluster.state_is_gone = True
    with pytest.raises(ActorLost, match="no state"):
        await remote(True).pause()

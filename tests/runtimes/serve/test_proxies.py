"""Whoever starts while the state of the run is gone waits for the next one."""

import pytest

from relax_core.runtimes.serve import proxies
from relax_core.transports.ray.calls import ActorLost


async def test_a_state_that_is_brought_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [ActorLost("run: there is no actor 'state' now")] * 3

    def find_actor(name: str, run_id: str) -> str:
        if answers:
            raise answers.pop()
        return f"{name} of {run_id}"

    monkeypatch.setattr(proxies, "find_actor", find_actor)
    monkeypatch.setattr(proxies, "PAUSE_SECONDS", 0.0)
    assert (await proxies.find_state("run", 60.0)).actor == "state of run"


async def test_a_state_that_does_not_come_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_actor(name: str, run_id: str) -> str:
        raise ActorLost("run: there is no actor 'state' now")

    monkeypatch.setattr(proxies, "find_actor", find_actor)
    with pytest.raises(ActorLost):
        await proxies.find_state("run", 0.0)

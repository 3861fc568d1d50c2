"""Who has which version, as the coordinator sees it."""

import pytest

from relax_core.api.errors import RelaxError
from relax_core.weights.coordinator import Coordinator, UnknownReceiver


def published(coordinator: Coordinator, version: int, error: str = "") -> None:
    coordinator.began(version, "full", 10)
    coordinator.ended(version, {"pause": 0.5}, error)


def test_engines_are_those_of_the_last_publication() -> None:
    coordinator = Coordinator()
    coordinator.register("outside", "external")
    coordinator.engines(["engine-0", "engine-1"])
    published(coordinator, 1)
    for name in ("engine-0", "engine-1"):
        coordinator.acknowledge(name, 1)
    assert coordinator.have(["engine-0", "engine-1"], 1)
    coordinator.engines(["engine-1", "engine-2"])
    names = [receiver["name"] for receiver in coordinator.status()["receivers"]]
    assert sorted(names) == ["engine-1", "engine-2", "outside"]
    assert coordinator.have(["engine-1"], 1)
    assert not coordinator.have(["engine-1", "engine-2"], 1), "a new engine has nothing"


def test_who_asks_for_everything_has_nothing() -> None:
    coordinator = Coordinator()
    coordinator.engines(["engine-0"])
    published(coordinator, 1)
    coordinator.acknowledge("engine-0", 1)
    coordinator.again("engine-0")
    assert not coordinator.have(["engine-0"], 1)


def test_who_asks_for_everything_while_something_is_on_its_way_waits_for_the_next_that_is_whole() -> None:
    coordinator = Coordinator()
    coordinator.engines(["engine-0", "engine-1"])
    has_it = {}
    for version, kind in ((1, "full"), (2, "delta"), (3, "delta"), (4, "full")):
        coordinator.began(version, kind, 10)
        if version == 2:
            coordinator.again("engine-0")
        coordinator.ended(version, {})
        coordinator.reached(["engine-0", "engine-1"], version)
        has_it[version] = [coordinator.have([name], version) for name in ("engine-0", "engine-1")]
    assert has_it == {1: [True, True], 2: [False, True], 3: [False, True], 4: [True, True]}


def test_who_asks_again_while_a_whole_publication_is_on_its_way_gets_another() -> None:
    coordinator = Coordinator()
    coordinator.engines(["engine-0"])
    coordinator.began(1, "full", 10)
    coordinator.again("engine-0")
    coordinator.ended(1, {})
    coordinator.reached(["engine-0"], 1)
    assert not coordinator.have(["engine-0"], 1), "it may have lost what it had received by then"


def test_what_arrived_at_an_engine_that_is_gone_is_no_matter() -> None:
    coordinator = Coordinator()
    coordinator.engines(["engine-0", "engine-1"])
    coordinator.began(1, "full", 10)
    coordinator.engines(["engine-1"])
    coordinator.ended(1, {})
    coordinator.reached(["engine-0", "engine-1"], 1)
    assert [receiver["name"] for receiver in coordinator.status()["receivers"]] == ["engine-1"]


def test_an_engine_of_the_run_stays_a_receiver() -> None:
    coordinator = Coordinator()
    coordinator.engines(["engine-0"])
    with pytest.raises(RelaxError, match="'engine-0' is an engine of the run"):
        coordinator.unregister("engine-0")
    assert [receiver["name"] for receiver in coordinator.status()["receivers"]] == ["engine-0"]
    coordinator.unregister("nobody")


def test_a_failed_publication_is_no_version_and_is_remembered() -> None:
    coordinator = Coordinator(keep=2, clock=lambda: 7.0)
    for version, error in ((1, ""), (2, ""), (3, "the device is gone")):
        published(coordinator, version, error)
    assert coordinator.version == 2
    history = coordinator.status()["history"]
    assert [(each["version"], each["error"]) for each in history] == [(2, ""), (3, "the device is gone")]
    assert history[0]["seconds"] == {"pause": 0.5}


def test_what_cannot_be_is_refused() -> None:
    coordinator = Coordinator()
    with pytest.raises(UnknownReceiver):
        coordinator.acknowledge("nobody", 0)
    with pytest.raises(UnknownReceiver):
        coordinator.again("nobody")
    with pytest.raises(RelaxError, match="not 'spy'"):
        coordinator.register("me", "spy")
    coordinator.register("me", "external")
    with pytest.raises(RelaxError, match="version 1, and 0 is the newest"):
        coordinator.acknowledge("me", 1)

"""The budget of a run, without a run."""

import pytest

from relax_core.runtimes.serve.restarts import Restarts, TooManyLosses


@pytest.fixture
def told() -> list[tuple[str, ...]]:
    return []


def make(told: list[tuple[str, ...]], each: int, together: int) -> Restarts:
    return Restarts(each, together, lambda *event: told.append(event), lambda name, amount: told.append((name,)))


def test_each_loss_is_counted_and_told_when_it_is_made_good(told: list[tuple[str, ...]]) -> None:
    restarts = make(told, 2, 3)
    restarts.spend("reward", "its process died")
    restarts.done("reward", "its process died", 2.0)
    assert told == [("restarts/reward",), ("restarted", "reward, after 2.0 s: its process died")]


def test_one_name_too_often_ends_the_run(told: list[tuple[str, ...]]) -> None:
    restarts = make(told, 1, 10)
    restarts.spend("state", "no answer")
    restarts.spend("actor", "dead")
    with pytest.raises(TooManyLosses, match=r"state was lost 2 times, serve\.restarts is 1; the last time: gone"):
        restarts.spend("state", "gone")
    assert told == [("restarts/state",), ("restarts/actor",)]


def test_too_much_together_ends_the_run(told: list[tuple[str, ...]]) -> None:
    restarts = make(told, 5, 1)
    restarts.spend("state", "no answer")
    with pytest.raises(TooManyLosses, match=r"2 losses \(state 1, actor 1\), .* the last one, of actor: dead"):
        restarts.spend("actor", "dead")

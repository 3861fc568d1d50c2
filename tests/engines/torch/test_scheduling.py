"""As many run as are allowed, in the right order."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from relax_core.engines.torch.config import TorchEngineConfig
from relax_core.engines.torch.scheduling import Queue
from relax_core.engines.torch.trajectory import TorchTrajectory
from relax_core.testing.generations import request

Waiting = Sequence[tuple[str, int, int]]
"""``(key, prompt length, priority)``; each asks for up to 10 new tokens."""


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def trajectories(loop: asyncio.AbstractEventLoop, waiting: Waiting) -> list[TorchTrajectory]:
    return [
        TorchTrajectory(request(key, [1] * length, priority=priority), 10, loop.create_future(), arrival, frozenset())
        for arrival, (key, length, priority) in enumerate(waiting)
    ]


def names(
    loop: asyncio.AbstractEventLoop, waiting: Waiting, config: TorchEngineConfig, running: Waiting = ()
) -> list[str]:
    """Keys of those that enter beside others that run."""
    queue = Queue(config)
    queue.put(reversed(trajectories(loop, waiting)))
    taken = [each.request.key for each in queue.take(trajectories(loop, running))]
    assert len(queue) == len(waiting) - len(taken)
    return taken


def alike(count: int) -> Waiting:
    return [(f"{index}", 10, 0) for index in range(count)]


def test_higher_priority_first_then_arrival(loop: asyncio.AbstractEventLoop) -> None:
    waiting = [("a", 1, 0), ("b", 1, 5), ("c", 1, 0), ("d", 1, 5), ("e", 1, -1)]
    assert names(loop, waiting, TorchEngineConfig()) == ["b", "d", "a", "c", "e"]
    assert names(loop, waiting, TorchEngineConfig(max_batch_rows=3)) == ["b", "d", "a"]
    assert names(loop, waiting, TorchEngineConfig(max_batch_rows=3), alike(2)) == ["b"]


def test_the_cache_is_bounded_by_rows_times_the_longest(loop: asyncio.AbstractEventLoop) -> None:
    waiting = [("a", 10, 0), ("b", 20, 0), ("c", 5, 0), ("d", 90, 0)]
    assert names(loop, waiting, TorchEngineConfig(max_batch_tokens=90)) == ["a", "b", "c"]
    assert names(loop, waiting, TorchEngineConfig(max_batch_tokens=89)) == ["a", "b"]
    assert names(loop, waiting, TorchEngineConfig(max_batch_tokens=90), [("r", 20, 0)]) == ["a", "b"]
    assert names(loop, waiting, TorchEngineConfig(max_batch_tokens=90), [("r", 50, 0)]) == []


def test_a_single_trajectory_always_runs(loop: asyncio.AbstractEventLoop) -> None:
    assert names(loop, [("a", 50, 0), ("b", 1, 0)], TorchEngineConfig(max_batch_tokens=1)) == ["a"]
    assert names(loop, [("a", 50, 0)], TorchEngineConfig(max_batch_tokens=1), alike(1)) == []


@pytest.mark.parametrize(
    ("running", "waiting", "entering"), [(64, 9, 0), (57, 9, 0), (56, 9, 8), (60, 4, 4), (0, 70, 64)]
)
def test_an_eighth_enters_at_a_time_unless_all_find_room(
    loop: asyncio.AbstractEventLoop, running: int, waiting: int, entering: int
) -> None:
    assert len(names(loop, alike(waiting), TorchEngineConfig(max_batch_rows=64), alike(running))) == entering


def test_who_was_aborted_waits_no_longer(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue(TorchEngineConfig())
    waiting = trajectories(loop, alike(3))
    queue.put(waiting)
    waiting[1].aborted = True
    assert queue.take_aborted() == [waiting[1]]
    assert queue.take_aborted() == []
    assert queue.take([]) == [waiting[0], waiting[2]]

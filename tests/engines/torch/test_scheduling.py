"""Batches are as large as allowed and in the right order."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from relax_core.engines.torch.config import TorchEngineConfig
from relax_core.engines.torch.scheduling import next_batch
from relax_core.engines.torch.trajectory import TorchTrajectory
from relax_core.testing.generations import request


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def names(
    loop: asyncio.AbstractEventLoop, waiting: Sequence[tuple[str, int, int]], config: TorchEngineConfig
) -> list[str]:
    """Keys of the next batch out of ``(key, prompt length, priority)``, each with up to 10 new tokens."""
    trajectories = [
        TorchTrajectory(request(key, [1] * length, priority=priority), 10, loop.create_future(), arrival, frozenset())
        for arrival, (key, length, priority) in enumerate(waiting)
    ]
    return [each.request.key for each in next_batch(reversed(trajectories), config)]


def test_higher_priority_first_then_arrival(loop: asyncio.AbstractEventLoop) -> None:
    waiting = [("a", 1, 0), ("b", 1, 5), ("c", 1, 0), ("d", 1, 5), ("e", 1, -1)]
    assert names(loop, waiting, TorchEngineConfig()) == ["b", "d", "a", "c", "e"]
    assert names(loop, waiting, TorchEngineConfig(max_batch_rows=3)) == ["b", "d", "a"]


def test_the_cache_is_bounded_by_rows_times_the_longest(loop: asyncio.AbstractEventLoop) -> None:
    waiting = [("a", 10, 0), ("b", 20, 0), ("c", 5, 0), ("d", 90, 0)]
    assert names(loop, waiting, TorchEngineConfig(max_batch_tokens=90)) == ["a", "b", "c"]
    assert names(loop, waiting, TorchEngineConfig(max_batch_tokens=89)) == ["a", "b"]


def test_a_single_trajectory_always_runs(loop: asyncio.AbstractEventLoop) -> None:
    assert names(loop, [("a", 50, 0), ("b", 1, 0)], TorchEngineConfig(max_batch_tokens=1)) == ["a"]

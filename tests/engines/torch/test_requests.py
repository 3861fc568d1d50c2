"""Batches are as large as allowed and in the right order."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from relax_core.api.context import ModelSource
from relax_core.api.engine import Capability
from relax_core.api.errors import RelaxError
from relax_core.engines.torch.config import TorchEngineConfig
from relax_core.engines.torch.model import load_model
from relax_core.engines.torch.requests import check_request, next_batch
from relax_core.engines.torch.trajectory import Trajectory
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
        Trajectory(request(key, [1] * length, priority=priority), arrival, 10, frozenset(), loop.create_future())
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


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"prompt": []}, "empty"),
        ({"prompt": [1] * 512}, "context of 512"),
        ({"prompt": [266]}, "outside 0 to 265"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop": ("",)}, "stop string is empty"),
        ({"stop": ("x",)}, "stop_strings"),
    ],
)
def test_an_impossible_request_is_named(tiny_model_path: Path, changes: dict[str, Any], reason: str) -> None:
    model = load_model(ModelSource(tiny_model_path), "cpu", 0)
    with pytest.raises(RelaxError, match=f"'wrong'.*{reason}"):
        check_request(request("wrong", **changes), model, frozenset(Capability) - {Capability.STOP_STRINGS})

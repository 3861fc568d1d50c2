"""No trajectory is lost, whenever it is aborted."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from relax_core.api.context import ModelSource
from relax_core.api.rows import StopReason
from relax_core.engines.torch.batch import Batch
from relax_core.engines.torch.model import load_model
from relax_core.engines.torch.trajectory import TorchTrajectory
from relax_core.testing.generations import request


class AbortedAmid(TorchTrajectory):
    """Aborted by another thread between two looks at it, the ``looks``-th of which is the first to see it."""

    looks = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "aborted":
            self.looks -= 1
            return self.looks < 0
        return super().__getattribute__(name)


@pytest.mark.parametrize("looks", range(6))
async def test_an_abort_at_any_moment_ends_the_trajectory_with_its_tokens(tiny_model_path: Path, looks: int) -> None:
    model = load_model(ModelSource(tiny_model_path), "cpu", 0)
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    trajectory = AbortedAmid(request("amid"), 100, future, 0, frozenset())
    trajectory.looks = looks
    batch = Batch(model, 0)
    batch.enter([trajectory])
    for _ in range(10):
        with torch.inference_mode():
            step = batch.step()
        if step.ended:
            break
        assert batch.trajectories == [trajectory]
    assert [(each.trajectory, each.outcome) for each in step.ended] == [(trajectory, StopReason.ABORT)]
    assert batch.trajectories == []
    assert step.tokens == 0

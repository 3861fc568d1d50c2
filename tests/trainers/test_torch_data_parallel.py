"""Gradients summed over ranks; that two ranks make the updates of one is tested on whole runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed
from torch import nn

from relax_core.trainers.torch.config import TorchTrainerConfig
from relax_core.trainers.torch.data_parallel import DataParallelOptimizer


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'ranks'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def optimizer(**parameters: nn.Parameter) -> DataParallelOptimizer:
    return DataParallelOptimizer(TorchTrainerConfig(learning_rate=0.1, weight_decay=0.5), parameters, parameters)


@pytest.mark.usefixtures("one_rank")
def test_a_parameter_without_a_gradient_anywhere_is_not_touched() -> None:
    used, unused = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(2, 2))
    used.grad = torch.arange(6.0).view(2, 3)
    optimizing = optimizer(used=used, unused=unused)
    reduced = optimizing.reduce()
    assert torch.equal(reduced["used"], torch.arange(6.0).view(2, 3))
    assert "unused" not in reduced
    assert optimizing.apply(1.0)["skipped"] == 0
    assert torch.equal(unused, torch.ones(2, 2)), "not even its weight decays"
    assert not torch.equal(used, torch.ones(2, 3))


@pytest.mark.usefixtures("one_rank")
def test_a_gradient_that_is_not_finite_is_skipped_by_all() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.tensor([float("nan"), 1.0])
    assert optimizer(weight=weight).apply(1.0)["skipped"] == 1
    assert torch.equal(weight, torch.ones(2))

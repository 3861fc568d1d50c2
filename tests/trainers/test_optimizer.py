import math
from typing import Any

import pytest
import torch
from torch import nn

from relax_core.api.errors import ConfigError, TrainingError
from relax_core.config import TrainerConfig
from relax_core.trainers.optimizer import MasterOptimizer, learning_rate_at


def rates(**settings: Any) -> list[float]:
    config = TrainerConfig(learning_rate=1.0, **settings)
    return [round(learning_rate_at(config, update), 6) for update in range(7)]


def test_schedules() -> None:
    assert rates() == [1.0] * 7
    assert rates(warmup_updates=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0]
    assert rates(schedule="linear", total_updates=4) == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0, 0.0]
    assert rates(schedule="linear", warmup_updates=2, total_updates=4, minimum_learning_rate=0.5) == [
        0.5, 1.0, 1.0, 0.75, 0.5, 0.5, 0.5,
    ]  # fmt: skip
    half = (1 + math.cos(math.pi / 4)) / 2
    assert rates(schedule="cosine", total_updates=4)[:5] == [1.0, round(half, 6), 0.5, round(1 - half, 6), 0.0]


def test_a_schedule_needs_a_length() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.total_updates: the schedule 'cosine' needs a length"):
        optimizer_of(nn.Linear(2, 2), schedule="cosine")


def optimizer_of(model: nn.Module, **settings: Any) -> MasterOptimizer:
    parameters = dict(model.named_parameters())
    return MasterOptimizer(TrainerConfig(**settings), parameters, parameters)


def test_one_step_is_that_of_torch() -> None:
    model, other = nn.Linear(3, 2, bias=False), nn.Linear(3, 2, bias=False)
    other.load_state_dict(model.state_dict())
    inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    optimizer = optimizer_of(model, learning_rate=0.1, weight_decay=0.01, betas=(0.8, 0.9), max_grad_norm=0.5)
    adamw = torch.optim.AdamW(other.parameters(), lr=0.1, weight_decay=0.01, betas=(0.8, 0.9), eps=1e-8)
    for _ in range(3):
        model(inputs).square().sum().backward()
        metrics = optimizer.apply(5.0)
        (other(inputs).square().sum() / 5).backward()
        norm = nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        adamw.step()
        adamw.zero_grad()
        assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-5)
        torch.testing.assert_close(model.weight, other.weight, rtol=1e-5, atol=1e-6)


def test_only_matrices_decay() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    for parameter in model.parameters():
        nn.init.ones_(parameter)
        parameter.grad = torch.zeros_like(parameter)
    optimizer_of(model, learning_rate=0.1, weight_decay=0.5).apply(1.0)
    changed = {name for name, parameter in model.named_parameters() if not (parameter == 1).all()}
    assert changed == {"0.weight"}


def test_learning_rate_zero_changes_nothing_but_counts() -> None:
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    optimizer = optimizer_of(model, learning_rate=0.0)
    model(torch.ones(1, 2)).sum().backward()
    assert optimizer.apply(1.0)["skipped"] == 0 and optimizer.updates == 1
    assert torch.equal(model.weight, before)


def test_skipped_updates_do_not_move_the_schedule() -> None:
    model = nn.Linear(2, 2)
    optimizer = optimizer_of(model, learning_rate=1.0, warmup_updates=4)
    for gradient, denominator in ((math.nan, 1.0), (1.0, 0.0), (math.inf, 1.0), (1.0, math.nan)):
        model.weight.grad = torch.full_like(model.weight, gradient)
        assert optimizer.apply(denominator)["learning_rate"] == 0.25
        assert model.weight.grad is None
    model.weight.grad = torch.ones_like(model.weight)
    assert optimizer.apply(1.0) == {"grad_norm": 2.0, "learning_rate": 0.25, "skipped": 0.0}
    assert optimizer.learning_rate == 0.5


def test_giving_up_names_the_first_parameter_that_is_not_finite() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = optimizer_of(model, max_skipped_in_row=1)
    for name, parameter in model.named_parameters():
        parameter.grad = torch.full_like(parameter, math.nan if name.startswith("1.") else 0.0)
    with pytest.raises(
        TrainingError, match=r"1 updates in a row were not finite; in the last one the gradient of 1\.w"
    ):
        optimizer.apply(1.0)


def test_bfloat16_gradients_add_up_in_float32() -> None:
    model = nn.Linear(1, 1, bias=False).bfloat16()
    master = model.weight.detach().float()
    optimizer = MasterOptimizer(TrainerConfig(max_grad_norm=1e9), {"weight": model.weight}, {"weight": master})
    for scale in (256.0, *[1.0] * 4):
        (model.weight * scale).sum().backward()
        assert model.weight.grad is None
    assert optimizer.apply(1.0)["grad_norm"] == 260.0

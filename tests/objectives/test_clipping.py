import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relax_core.objectives.clipping import clipped_policy_loss

LOW, HIGH = 0.2, 0.28
ratios = st.floats(min_value=1e-3, max_value=1e3)
advantages = st.floats(min_value=-5, max_value=5)


def textbook(ratio: float, advantage: float, dual: float | None) -> tuple[float, float]:
    """Loss and its derivative by the ratio, case by case."""
    if advantage >= 0:
        return (-ratio * advantage, -advantage) if ratio <= 1 + HIGH else (-(1 + HIGH) * advantage, 0.0)
    if ratio < 1 - LOW:
        return -(1 - LOW) * advantage, 0.0
    if dual is not None and ratio > dual:
        return -dual * advantage, 0.0
    return -ratio * advantage, -advantage


@given(ratios, advantages, st.sampled_from([None, 3.0]))
def test_value_gradient_and_indicators_equal_the_textbook(ratio: float, advantage: float, dual: float | None) -> None:
    at = torch.tensor([ratio], dtype=torch.float64, requires_grad=True)
    loss = clipped_policy_loss(at, torch.tensor([advantage], dtype=torch.float64), LOW, HIGH, dual)
    loss.value.sum().backward()
    value, slope = textbook(ratio, advantage, dual)
    assert at.grad is not None
    assert loss.value.item() == pytest.approx(value)
    if min(abs(ratio - edge) for edge in (1 - LOW, 1 + HIGH, 3.0)) > 1e-9:
        assert at.grad.item() == pytest.approx(slope)
        cut = bool(loss.low | loss.high | loss.dual)
        assert cut == (advantage != 0 and slope == 0)


def test_each_bound_has_its_own_indicator() -> None:
    ratio = torch.tensor([0.5, 0.5, 2.0, 2.0, 5.0, 5.0])
    sign = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    loss = clipped_policy_loss(ratio, sign, LOW, HIGH, dual=3.0)
    assert loss.low.tolist() == [False, True, False, False, False, False]
    assert loss.high.tolist() == [False, False, True, False, True, False]
    assert loss.dual.tolist() == [False, False, False, False, False, True]


@pytest.mark.parametrize("dual", [None, 3.0])
def test_gradient_at_ratio_one_is_minus_the_advantage(dual: float | None) -> None:
    advantage = torch.tensor([2.0, -1.5, 0.0])
    ratio = torch.ones(3, requires_grad=True)
    clipped_policy_loss(ratio, advantage, LOW, HIGH, dual).value.sum().backward()
    assert ratio.grad is not None
    assert torch.equal(ratio.grad, -advantage)


@pytest.mark.parametrize("dual", [None, 3.0])
def test_nan_stays_visible(dual: float | None) -> None:
    number, nan = torch.tensor([1.0, -1.0]), torch.tensor([math.nan, math.nan])
    assert clipped_policy_loss(nan, number, LOW, HIGH, dual).value.isnan().all()
    assert clipped_policy_loss(number.abs(), nan, LOW, HIGH, dual).value.isnan().all()

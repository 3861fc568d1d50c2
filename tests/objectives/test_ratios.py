import math

import pytest
import torch

from relax_core.objectives.ratios import MAX_EXPONENT, importance_ratio


def test_inside_the_bound_it_is_the_exponential_with_its_gradient() -> None:
    log_ratio = torch.tensor([-19.0, -0.3, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    ratio = importance_ratio(log_ratio)
    (gradient,) = torch.autograd.grad(ratio.sum(), [log_ratio])
    expected = [math.exp(value) for value in log_ratio.tolist()]
    assert ratio.tolist() == pytest.approx(expected)
    assert gradient.tolist() == pytest.approx(expected)


def test_beyond_the_bound_it_is_constant() -> None:
    log_ratio = torch.tensor([200.0, -200.0, math.inf, -math.inf], requires_grad=True)
    ratio = importance_ratio(log_ratio)
    (gradient,) = torch.autograd.grad(ratio.sum(), [log_ratio])
    high, low = math.exp(MAX_EXPONENT), math.exp(-MAX_EXPONENT)
    assert ratio.tolist() == pytest.approx([high, low, high, low])
    assert not gradient.any()
    assert torch.isfinite(ratio.square()).all()


def test_nan_stays_visible() -> None:
    assert importance_ratio(torch.tensor([math.nan])).isnan().all()

"""Gradients are compared with the exact divergence over a vocabulary of five tokens: expectations are sums here."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from relax_core.objectives.kl import k2, k3, kl_loss, kl_penalty

torch.manual_seed(0)
LOGITS, REFERENCE, OLD = torch.randn(3, 5, dtype=torch.float64)


def expected_gradient(
    estimator: Callable[[Tensor, Tensor], Tensor], sampled_from: Tensor | None = None, reference: Tensor = REFERENCE
) -> Tensor:
    """Gradient of the mean over infinitely many tokens drawn from a policy that does not move."""
    logits = LOGITS.clone().requires_grad_()
    logprobs = logits.log_softmax(-1)
    old = logprobs.detach() if sampled_from is None else sampled_from.log_softmax(-1)
    losses = estimator(logprobs - reference.log_softmax(-1), (logprobs - old).exp())
    (gradient,) = torch.autograd.grad((old.exp() * losses).sum(), [logits])
    return gradient


def exact_gradient(forward: bool, reference: Tensor = REFERENCE) -> Tensor:
    """Gradient of KL(current‖reference), or with ``forward`` of KL(reference‖current)."""
    logits = LOGITS.clone().requires_grad_()
    p, q = logits.log_softmax(-1), reference.log_softmax(-1)
    divergence = (q.exp() * (q - p)).sum() if forward else (p.exp() * (p - q)).sum()
    (gradient,) = torch.autograd.grad(divergence, [logits])
    return gradient


def test_k1_as_a_loss_would_do_nothing() -> None:
    assert torch.allclose(expected_gradient(lambda log_ratio, _: log_ratio), torch.zeros(5).double(), atol=1e-12)


def test_k2_has_the_gradient_of_the_reverse_divergence() -> None:
    gradient = expected_gradient(lambda log_ratio, ratio: kl_loss("k2", log_ratio, ratio))
    assert torch.allclose(gradient, exact_gradient(forward=False))


def test_k3_has_the_gradient_of_the_forward_divergence() -> None:
    gradient = expected_gradient(lambda log_ratio, ratio: kl_loss("k3", log_ratio, ratio))
    assert torch.allclose(gradient, exact_gradient(forward=True))
    assert not torch.allclose(gradient, exact_gradient(forward=False), rtol=0.05)


@pytest.mark.parametrize("sampled_from", [None, OLD], ids=["on-policy", "off-policy"])
def test_weighted_k3_has_the_gradient_of_the_reverse_divergence(sampled_from: Tensor | None) -> None:
    gradient = expected_gradient(lambda log_ratio, ratio: kl_loss("weighted_k3", log_ratio, ratio), sampled_from)
    assert torch.allclose(gradient, exact_gradient(forward=False))


def test_low_variance_has_it_too_where_no_token_reaches_the_bound() -> None:
    estimator = partial(kl_loss, "low_variance")
    near = LOGITS + 0.5 * REFERENCE
    assert torch.allclose(expected_gradient(estimator, reference=near), exact_gradient(forward=True, reference=near))
    far = LOGITS + 5 * REFERENCE
    assert not torch.allclose(expected_gradient(estimator, reference=far), exact_gradient(True, far), rtol=0.05)


def expected_gradient_in_the_reward(estimator: Callable[[Tensor], Tensor], reference: Tensor) -> Tensor:
    """Of a policy gradient that is told the estimate as a cost, over infinitely many tokens of the policy."""
    logits = LOGITS.clone().requires_grad_()
    logprobs = logits.log_softmax(-1)
    costs = estimator(logprobs.detach() - reference.log_softmax(-1))
    (gradient,) = torch.autograd.grad((logprobs.detach().exp() * costs * logprobs).sum(), [logits])
    return gradient


def test_k1_in_the_reward_has_the_gradient_of_the_reverse_divergence() -> None:
    gradient = expected_gradient_in_the_reward(lambda log_ratio: log_ratio, REFERENCE)
    assert torch.allclose(gradient, exact_gradient(forward=False))


@pytest.mark.parametrize("estimator", [k2, k3])
def test_others_in_the_reward_do_next_to_nothing_near_the_reference(estimator: Callable[[Tensor], Tensor]) -> None:
    near = LOGITS + 1e-3 * REFERENCE
    right = expected_gradient_in_the_reward(lambda log_ratio: log_ratio, near).norm()
    assert expected_gradient_in_the_reward(estimator, near).norm() < 1e-2 * right


def test_the_penalty_of_a_token_that_one_side_excludes_is_finite() -> None:
    penalty = kl_penalty(np.array([-1.0, -math.inf, -1.0]), np.array([-1.5, -1.0, -math.inf]))
    assert penalty.tolist() == pytest.approx([0.5, -20.0, 20.0])


def test_k3_has_the_right_mean() -> None:
    p, q = LOGITS.log_softmax(-1), REFERENCE.log_softmax(-1)
    assert (p.exp() * k3(p - q)).sum().item() == pytest.approx((p.exp() * (p - q)).sum().item())


def test_k1_is_refused_as_a_loss() -> None:
    for name, reason in (("k1", "zero expected gradient"), ("k4", "unknown")):
        with pytest.raises(ValueError, match=reason):
            kl_loss(name, LOGITS, LOGITS)  # type: ignore[arg-type]


def test_k3_at_extremes() -> None:
    log_ratio = torch.tensor([200.0, -200.0, math.inf, math.nan], requires_grad=True)
    values = k3(log_ratio)
    (gradient,) = torch.autograd.grad(values[:2].sum(), [log_ratio])
    assert values[0].item() == pytest.approx(199.0)
    assert values[1].item() == pytest.approx(math.exp(20) - 21)
    assert values[2].isinf()
    assert values[3].isnan()
    assert gradient[:2].tolist() == [1.0, 0.0]


def test_low_variance_is_finite_everywhere() -> None:
    log_ratio = torch.tensor([200.0, -200.0, math.inf, -math.inf, 0.5], requires_grad=True)
    values = kl_loss("low_variance", log_ratio, log_ratio)
    (gradient,) = torch.autograd.grad(values.sum(), [log_ratio])
    assert values[:4].tolist() == [10.0] * 4
    assert gradient[:4].tolist() == [0.0] * 4
    assert gradient[4].item() == pytest.approx(1 - math.exp(-0.5))

import math

import pytest
import torch

from relax_core.api.tokens import Tokens
from relax_core.objectives.ratios import MAX_EXPONENT, answer_ratio, importance_ratio, sequence_ratio
from relax_core.testing.algorithm import make_tokens


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


def two_rows(log_ratios: list[list[float]]) -> Tokens:
    """Rows whose current log-probability is -1 everywhere, and ``old`` so much below it."""
    rows = [{"logprobs": [-1.0] * len(row), "old": [-1.0 - value for value in row]} for row in log_ratios]
    return make_tokens(rows, list(range(len(rows))), dtype=torch.float64)


def test_a_sequence_has_the_mean_of_its_tokens() -> None:
    tokens = two_rows([[0.1, 0.3, -0.1], [0.5]])
    ratio = sequence_ratio(tokens, tokens["old"])
    expected = [math.exp(0.1)] * 3 + [math.exp(0.5)]
    assert ratio.tolist() == pytest.approx(expected)
    (gradient,) = torch.autograd.grad(ratio.sum(), [tokens.logprobs])
    assert gradient.tolist() == pytest.approx(expected)  # each token its own, where GSPO gives each a third of three


def test_an_answer_has_the_product_of_its_tokens() -> None:
    tokens = two_rows([[0.1, 0.3, -0.1], [0.5]])
    ratio = answer_ratio(tokens, tokens["old"])
    assert ratio.tolist() == pytest.approx([math.exp(0.3), math.exp(0.5)])
    (gradient,) = torch.autograd.grad(ratio.sum(), [tokens.logprobs])
    assert gradient.tolist() == pytest.approx([math.exp(0.3)] * 3 + [math.exp(0.5)])


@pytest.mark.parametrize("value", [200.0, -200.0, math.inf])
def test_one_extreme_token_leaves_a_row_finite_and_without_gradient(value: float) -> None:
    tokens = two_rows([[value, 0.1], [0.5]])
    for ratio in (sequence_ratio(tokens, tokens["old"]), answer_ratio(tokens, tokens["old"])):
        (gradient,) = torch.autograd.grad(ratio.sum(), [tokens.logprobs])
        assert torch.isfinite(ratio).all()
        assert gradient[:2].tolist() == [0.0, 0.0]
        assert gradient[2].item() == pytest.approx(math.exp(0.5))

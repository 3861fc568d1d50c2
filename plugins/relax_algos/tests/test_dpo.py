from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from relax_algos.dpo import DPO, DPOConfig
from torch.nn.functional import logsigmoid

from relax_core.api.context import Context
from relax_core.testing.algorithm import AlgorithmContract, make_tokens, select_rows, sum_loss

LOGPROBS = st.lists(st.floats(-20, 0), min_size=1, max_size=5)
PAIRS = st.lists(st.tuples(LOGPROBS, LOGPROBS), min_size=1, max_size=4)


def make_dpo(**settings: object) -> DPO:
    return DPO(DPOConfig.model_validate(settings), Context(run_id="test", seed=0, directory=Path()))


class TestContract(AlgorithmContract):
    policy_gradient = False

    @pytest.fixture(params=[{}, {"label_smoothing": 0.1}, {"variant": "ipo"}, {"length_normalized": True}], ids=str)
    def algorithm(self, request: pytest.FixtureRequest) -> DPO:
        return make_dpo(**request.param)

    def entry(self, name: str, logprobs: npt.NDArray[np.float64], noise: npt.NDArray[np.float64]) -> npt.ArrayLike:
        return bool(len(logprobs) % 2) if name == "preferred" else super().entry(name, logprobs, noise)


def tokens_of_pairs(pairs, shuffle=None):
    """Two rows per pair, whose reference is a tenth of a nat below the policy at each token of a chosen answer."""
    rows = [
        {"logprobs": np.array(row), "ref_logprobs": np.array(row) * 0.9 - 0.1 * better, "preferred": better}
        for pair in pairs
        for better, row in zip((True, False), pair, strict=True)
    ]
    order = np.arange(len(rows)) if shuffle is None else shuffle.permutation(len(rows))
    groups = np.repeat(np.arange(len(pairs)), 2)
    return make_tokens([rows[place] for place in order], groups[order], dtype=torch.float64)


def log_ratios(pairs, mean=False):
    """``[P, 2]``: log p_current - log p_reference of the chosen and the rejected answer."""
    reduce = np.mean if mean else np.sum
    return torch.tensor([[reduce(np.array(c) * 0.1 + 0.1), reduce(np.array(r) * 0.1)] for c, r in pairs])


@given(pairs=PAIRS, beta=st.floats(0.01, 2), wrong=st.sampled_from([0.0, 0.2]), mean=st.booleans())
def test_the_loss_is_the_papers(pairs, beta, wrong, mean):
    difference = beta * log_ratios(pairs, mean).diff(dim=1).neg()[:, 0]
    expected = -(1 - wrong) * logsigmoid(difference) - wrong * logsigmoid(-difference)
    algorithm = make_dpo(beta=beta, label_smoothing=wrong, length_normalized=mean)
    numerator, denominator, metrics = sum_loss(algorithm, [tokens_of_pairs(pairs)])
    assert denominator.item() == pytest.approx(len(pairs))
    assert (numerator / denominator).item() == pytest.approx(expected.mean().item())
    total, count = metrics["margin"]
    assert total.item() / count == pytest.approx(difference.mean().item(), abs=1e-9)


@given(pairs=PAIRS, beta=st.floats(0.01, 2))
def test_ipo_is_the_squared_distance_to_half_the_inverse_of_beta(pairs, beta):
    expected = (-log_ratios(pairs).diff(dim=1)[:, 0] - 1 / (2 * beta)) ** 2
    numerator, denominator, _ = sum_loss(make_dpo(beta=beta, variant="ipo"), [tokens_of_pairs(pairs)])
    assert (numerator / denominator).item() == pytest.approx(expected.mean().item())


@given(pairs=PAIRS, seed=st.integers(0, 99))
def test_neither_the_order_of_rows_nor_of_groups_matters(pairs, seed):
    before = sum_loss(make_dpo(), [tokens_of_pairs(pairs)])
    after = sum_loss(make_dpo(), [tokens_of_pairs(pairs, np.random.default_rng(seed))])
    assert before[0].item() == pytest.approx(after[0].item())
    assert before[2]["chosen_reward"][0].item() == pytest.approx(after[2]["chosen_reward"][0].item(), abs=1e-9)


def test_the_gradient_is_beta_times_the_doubt():
    """Equation 7's gradient: beta · sigmoid(-margin), up for tokens of the chosen answer, down for the rejected."""
    pair = ([-1.0, -2.0, -0.5], [-3.0])
    tokens = tokens_of_pairs([pair])
    numerator, _, _ = sum_loss(make_dpo(beta=0.5), [tokens])
    (gradient,) = torch.autograd.grad(numerator, [tokens.logprobs])
    margin = 0.5 * (log_ratios([pair])[0, 0] - log_ratios([pair])[0, 1])
    doubt = 0.5 * torch.sigmoid(-margin).item()
    assert gradient.tolist() == pytest.approx([-doubt] * 3 + [doubt])


def test_an_answer_without_a_token_counts_as_one_that_is_certain():
    whole = sum_loss(make_dpo(), [tokens_of_pairs([([-1.0], [-2.0])])])
    tokens = tokens_of_pairs([([-1.0], [-2.0])])
    alone = sum_loss(make_dpo(), [select_rows(tokens, [0])])
    assert alone[2]["rejected_reward"][0].item() == 0
    assert alone[2]["margin"][0].item() == pytest.approx(alone[2]["chosen_reward"][0].item())
    assert alone[0].item() != whole[0].item()


def test_label_smoothing_belongs_to_the_sigmoid():
    with pytest.raises(ValidationError, match=r"label_smoothing: 0\.1 would be ignored: it needs variant: sigmoid"):
        DPOConfig(variant="ipo", label_smoothing=0.1)

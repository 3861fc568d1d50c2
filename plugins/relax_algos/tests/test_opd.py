from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from relax_algos.opd import OPD, OPDConfig

from relax_core.api.context import Context
from relax_core.testing.algorithm import AlgorithmContract, make_tokens, sum_loss


def make_opd(**settings: object) -> OPD:
    return OPD(OPDConfig.model_validate(settings), Context(run_id="test", seed=0, directory=Path()))


SETTINGS = [{}, {"correction": "tis", "dual_clip": 3.0}, {"reward_coefficient": 1.0}, {"off_policy_threshold": 0.1}]


class TestContract(AlgorithmContract):
    @pytest.fixture(params=SETTINGS, ids=str)
    def algorithm(self, request: pytest.FixtureRequest) -> OPD:
        return make_opd(**request.param)


def test_the_expected_gradient_is_that_of_the_divergence_over_the_vocabulary():
    """Every token of a small vocabulary, weighted by how often the policy draws it."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(5, generator=generator, dtype=torch.float64).log_softmax(0)
    current = logits.log_softmax(0)
    drawn = current.detach()
    rows = [
        {"logprobs": [one], "old_logprobs": [one], "teacher_logprobs": [other], "entropy": [0.0]}
        for one, other in zip(drawn.tolist(), teacher.tolist(), strict=True)
    ]
    tokens = make_tokens(rows, np.arange(5), ("logprobs", "entropy"), torch.float64)
    loss = make_opd().loss(tokens)
    (by_token,) = torch.autograd.grad((loss.value * drawn.exp()).sum(), [tokens.logprobs])
    (ours,) = torch.autograd.grad((current * by_token).sum(), [logits], retain_graph=True)
    divergence = (current.exp() * (current - teacher)).sum()
    (expected,) = torch.autograd.grad(divergence, [logits])
    assert expected.abs().max() > 0.1
    assert torch.allclose(ours, expected, rtol=1e-9)
    mean = (loss.metrics["kl_teacher"] * drawn.exp()).sum()
    assert mean.item() == pytest.approx(divergence.item()), "the metric is an estimate of KL(policy, teacher)"


def row(teacher: list[float], reward: float = 0.0):
    drawn = [-1.0, -2.0]
    return {
        "logprobs": drawn, "old_logprobs": drawn, "teacher_logprobs": teacher, "entropy": [0.0, 0.0],
        "advantages": reward,
    }  # fmt: skip


def gradient(algorithm: OPD, *rows) -> list[float]:
    tokens = make_tokens(list(rows), np.zeros(len(rows), int), ("logprobs", "entropy"), torch.float64)
    (made,) = torch.autograd.grad(sum_loss(algorithm, [tokens])[0], [tokens.logprobs])
    return made.tolist()


def test_a_token_that_the_teacher_finds_likelier_becomes_so():
    assert gradient(make_opd(), row([-0.5, -3.0])) == [-0.5, 1.0]
    assert gradient(make_opd(), row([-1.0, -2.0])) == [0, 0], "a teacher that is the policy teaches nothing"


def test_the_teacher_stands_beside_the_rewards():
    algorithm = make_opd(teacher_coefficient=0.5, reward_coefficient=2.0)
    assert gradient(algorithm, row([-0.5, -3.0], reward=0.25)) == pytest.approx([-0.25 - 0.5, 0.5 - 0.5])


def test_without_a_weight_no_reward_is_asked_for():
    asked = OPDConfig().requirements()
    assert (asked.rewards, asked.produces, asked.min_group_size) == (False, (), 1)
    asked = OPDConfig(reward_coefficient=1.0).requirements()
    assert (asked.rewards, [spec.name for spec in asked.produces], asked.min_group_size) == (True, ["advantages"], 2)


@pytest.mark.parametrize(
    "settings",
    [
        {"normalize_by_std": False},
        {"drop_equal_groups": True},
        {"overlong_length": 8},
        {"kl_in": "reward", "kl_coefficient": 0.1},
    ],
)
def test_what_reads_rewards_is_refused_without_a_weight(settings):
    with pytest.raises(ValidationError, match=f"{next(iter(settings))} would be ignored: it needs a reward_coeff"):
        OPDConfig.model_validate(settings)
    OPDConfig.model_validate({**settings, "reward_coefficient": 1.0})

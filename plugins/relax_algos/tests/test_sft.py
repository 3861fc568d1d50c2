from pathlib import Path

import numpy as np
import pytest
from relax_algos.sft import SFT, SFTConfig

from relax_core.api.context import Context
from relax_core.testing.algorithm import AlgorithmContract, make_tokens, sum_loss

ROWS = [np.array([-1.0, -2.0, -3.0]), np.array([-0.5])]


def make_sft(**settings: object) -> SFT:
    return SFT(SFTConfig.model_validate(settings), Context(run_id="test", seed=0, directory=Path()))


class TestContract(AlgorithmContract):
    policy_gradient = False

    @pytest.fixture(params=["token_mean", "row_mean"])
    def algorithm(self, request: pytest.FixtureRequest) -> SFT:
        return make_sft(reduction=request.param)


def test_supervised_needs_nothing_but_labels() -> None:
    asked = SFTConfig.model_validate({}).requirements()
    assert asked.supervised
    assert not asked.needs
    assert not asked.produces
    assert asked.outputs == {"logprobs"}


@pytest.mark.parametrize(("reduction", "expected"), [("token_mean", 6.5 / 4), ("row_mean", (2.0 + 0.5) / 2)])
def test_loss_is_the_mean_negative_log_likelihood(reduction: str, expected: float) -> None:
    tokens = make_tokens([{"logprobs": row} for row in ROWS], groups=[0, 1])
    numerator, denominator, _ = sum_loss(make_sft(reduction=reduction), [tokens])
    assert (numerator / denominator).item() == pytest.approx(expected)

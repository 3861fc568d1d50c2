import math

import torch

from relax_core.objectives.rejection import divergence_rejection, geometric_rejection, off_policy_rows
from relax_core.testing.algorithm import make_tokens

ROWS = [[0.3, -0.3], [0.02, 0.02, 0.02], [0.0], [-0.02, -0.02], [math.inf, 0.0], [-math.inf, 0.0]]
TOKENS = make_tokens(
    [{"logprobs": [-1.0] * len(row), "log_ratio": row} for row in ROWS], list(range(6)), dtype=torch.float64
)


def test_the_geometric_mean_lets_deviations_cancel() -> None:
    made = geometric_rejection(TOKENS, TOKENS["log_ratio"], 0.99, 1.01)
    assert made.rejected.tolist() == [False, True, False, True, True, True]
    assert torch.allclose(made.distance[:4], torch.tensor([0.0, 0.02, 0.0, -0.02], dtype=torch.float64).exp())
    assert torch.isfinite(made.distance).all()


def test_the_divergence_adds_them_up() -> None:
    made = divergence_rejection(TOKENS, TOKENS["log_ratio"], 0.01)
    assert made.rejected.tolist() == [True, False, False, False, True, True]
    expected = (math.exp(0.3) - 1.3 + math.exp(-0.3) - 0.7) / 2
    assert math.isclose(made.distance[0].item(), expected)


def test_rows_that_became_less_probable_are_off_policy() -> None:
    rollout = TOKENS.logprobs.detach() + TOKENS["log_ratio"]
    made = off_policy_rows(TOKENS, rollout, 0.01)
    assert made.rejected.tolist() == [False, True, False, False, True, False]
    assert not made.distance.requires_grad

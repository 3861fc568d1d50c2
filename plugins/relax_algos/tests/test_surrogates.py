"""What each algorithm makes of a token, against its paper's formula in plain floats."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from relax_algos.cispo import CISPO, CISPOConfig
from relax_algos.gspo import GSPO, GSPOConfig
from relax_algos.m2po import M2PO, M2POConfig
from relax_algos.policy_gradient import PolicyGradient
from relax_algos.rloo import RLOO, RLOOConfig
from relax_algos.sapo import SAPO, SAPOConfig

from relax_core.api.context import Context
from relax_core.testing.algorithm import make_tokens, sum_loss

CONTEXT = Context(run_id="test", seed=0, directory=Path())
GROUPS = [0, 0, 0, 1, 1]
Row = dict[str, Any]


def random_rows(seed: int) -> list[Row]:
    generator = np.random.default_rng(seed)
    rows = []
    for length in (3, 5, 1, 4, 2):
        logprobs = -generator.exponential(size=length)
        rows.append(
            {
                "logprobs": logprobs,
                "entropy": generator.exponential(size=length),
                "old_logprobs": logprobs + 0.5 * generator.normal(size=length),
                "rollout_logprobs": logprobs + 0.5 * generator.normal(size=length),
                "log_ratio_bound": 0.3,
                "advantages": generator.normal(),
            }
        )
    return rows


def mean_over_answers(losses: list[list[float]]) -> float:
    return sum(sum(row) / len(row) for row in losses) / len(losses)


def mean_over_groups(losses: list[list[float]]) -> float:
    means = []
    for group in sorted(set(GROUPS)):
        own = [loss for row, other in zip(losses, GROUPS, strict=True) for loss in row if other == group]
        means.append(sum(own) / len(own))
    return sum(means) / len(means)


def ratios(row: Row, other: str = "old_logprobs") -> list[float]:
    return [math.exp(now - then) for now, then in zip(row["logprobs"], row[other], strict=True)]


def clipped(ratio: float, advantage: float, low: float, high: float) -> float:
    return -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)


def gspo(rows: list[Row]) -> float:
    losses = []
    for row in rows:
        ratio = math.prod(ratios(row)) ** (1 / len(row["logprobs"]))
        losses.append(clipped(ratio, row["advantages"], 3e-4, 4e-4))
    return sum(losses) / len(losses)


def rloo(rows: list[Row]) -> float:
    return sum(clipped(math.prod(ratios(row)), row["advantages"], 0.2, 0.2) for row in rows) / len(rows)


def sapo(rows: list[Row]) -> float:
    losses = []
    for row in rows:
        tau = 1.0 if row["advantages"] > 0 else 1.05
        losses.append([-4 / tau / (1 + math.exp(-tau * (r - 1))) * row["advantages"] for r in ratios(row)])
    return mean_over_answers(losses)


def cispo(rows: list[Row]) -> float:
    losses = []
    for row in rows:
        weights = [min(r, 5.0) for r in ratios(row)]
        losses.append([-w * row["advantages"] * logprob for w, logprob in zip(weights, row["logprobs"], strict=True)])
    return mean_over_groups(losses)


def one_sided_cispo(rows: list[Row]) -> float:
    losses = []
    for row in rows:
        advantage = row["advantages"]
        weights = [min(r, 1.2) if advantage >= 0 else max(r, 0.8) for r in ratios(row)]
        losses.append([-w * advantage * logprob for w, logprob in zip(weights, row["logprobs"], strict=True)])
    return mean_over_groups(losses)


def m2po(rows: list[Row]) -> float:
    losses = []
    for row in rows:
        advantage = row["advantages"]
        losses.append(
            [
                0.0 if math.log(r) * math.copysign(1, advantage) > 0.3 else -r * advantage
                for r in ratios(row, "rollout_logprobs")
            ]
        )
    return mean_over_groups(losses)


@pytest.mark.parametrize(
    ("algorithm", "textbook"),
    [
        (GSPO(GSPOConfig(), CONTEXT), gspo),
        (RLOO(RLOOConfig(), CONTEXT), rloo),
        (SAPO(SAPOConfig(), CONTEXT), sapo),
        (CISPO(CISPOConfig(), CONTEXT), cispo),
        (CISPO(CISPOConfig(one_sided=True, clip_low=0.2, clip_high=0.2), CONTEXT), one_sided_cispo),
        (M2PO(M2POConfig(), CONTEXT), m2po),
    ],
    ids=["gspo", "rloo", "sapo", "cispo", "one-sided cispo", "m2po"],
)
@pytest.mark.parametrize("seed", range(3))
def test_the_loss_of_an_update_is_the_papers(algorithm: PolicyGradient, textbook: Any, seed: int) -> None:
    rows = random_rows(seed)
    tokens = make_tokens(rows, GROUPS, {"logprobs", "entropy"}, torch.float64)
    numerator, denominator, _ = sum_loss(algorithm, [tokens])
    assert (numerator / denominator).item() == pytest.approx(textbook(rows), rel=1e-12)


def test_a_clipped_weight_of_cispo_keeps_its_gradient() -> None:
    rows = [{**row, "old_logprobs": row["logprobs"] - 3.0} for row in random_rows(0)]
    tokens = make_tokens(rows, GROUPS, {"logprobs", "entropy"}, torch.float64)
    loss = CISPO(CISPOConfig(reduction="token_mean"), CONTEXT).loss(tokens)
    (gradient,) = torch.autograd.grad(loss.value.sum(), [tokens.logprobs])
    assert torch.allclose(gradient, -5.0 * tokens["advantages"])
    assert loss.metrics["clip_fraction"].all()


def test_the_gate_of_sapo_has_slope_one_on_policy_and_falls_off_on_both_sides() -> None:
    rows = [{**row, "old_logprobs": row["logprobs"] + (place - 2)} for place, row in enumerate(random_rows(0))]
    tokens = make_tokens(rows, GROUPS, {"logprobs", "entropy"}, torch.float64)
    slope = SAPO(SAPOConfig(), CONTEXT).loss(tokens).metrics["gate_slope"]
    per_row = tokens.row_mean(slope)
    assert per_row[2].item() == 1.0
    assert (per_row[[0, 1, 3, 4]] < 1).all()


@pytest.mark.parametrize("algorithm", [GSPO(GSPOConfig(), CONTEXT), RLOO(RLOOConfig(), CONTEXT)], ids=["gspo", "rloo"])
def test_a_row_beyond_the_clip_has_no_gradient_at_all(algorithm: PolicyGradient) -> None:
    rows = [{**row, "old_logprobs": row["logprobs"] - 1.0, "advantages": 1.0} for row in random_rows(0)]
    tokens = make_tokens(rows, GROUPS, {"logprobs", "entropy"}, torch.float64)
    loss = algorithm.loss(tokens)
    (gradient,) = torch.autograd.grad((loss.value * loss.weight).sum(), [tokens.logprobs])
    assert not gradient.any()
    assert loss.metrics["clip_fraction_high"].all()

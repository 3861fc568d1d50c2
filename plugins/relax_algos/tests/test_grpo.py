import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from relax_algos.grpo import GRPO, GRPOConfig

from relax_core.api.algorithm import Trajectories
from relax_core.api.columns import Table
from relax_core.api.context import Context
from relax_core.api.rows import StopReason
from relax_core.testing.algorithm import AlgorithmContract, make_tokens, sum_loss

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "grpo paper": {"reduction": "row_mean", "kl_coefficient": 0.04},
    "dr grpo": {"normalize_by_std": False, "reduction": "row_sum_constant", "constant_length": 16},
    "dapo": {
        "clip_high": 0.28,
        "reduction": "group_token_mean",
        "drop_equal_groups": True,
        "mask_truncated": True,
    },
    "tis": {"correction": "tis", "dual_clip": 3.0, "log_entropy": False},
    "icepop": {"correction": "icepop", "entropy_coefficient": 0.01, "kl_coefficient": 0.1, "kl_estimator": "k2"},
    "weighted k3": {"kl_coefficient": 0.1, "kl_estimator": "weighted_k3", "mask_truncated": True},
}


def make_grpo(**settings: object) -> GRPO:
    return GRPO(GRPOConfig.model_validate(settings), Context(run_id="test", seed=0, directory=Path()))


class TestContract(AlgorithmContract):
    @pytest.fixture(params=list(SETTINGS.values()), ids=list(SETTINGS))
    def algorithm(self, request: pytest.FixtureRequest) -> GRPO:
        return make_grpo(**request.param)


def random_rows(seed: int = 0) -> tuple[list[dict[str, Any]], list[int]]:
    """Five rows of two groups with every column that any setting reads; policies differ enough to clip."""
    generator = np.random.default_rng(seed)
    rows = []
    for length, stop in [(3, StopReason.STOP), (5, StopReason.LENGTH), (1, StopReason.STOP), (4, 0), (2, 1)]:
        logprobs = -generator.exponential(size=length)
        rows.append(
            {
                "logprobs": logprobs,
                "entropy": generator.exponential(size=length),
                "old_logprobs": logprobs + 0.9 * generator.normal(size=length),
                "ref_logprobs": logprobs + 0.9 * generator.normal(size=length),
                "rollout_logprobs": logprobs + generator.normal(size=length),
                "advantages": generator.normal(),
                "stop_reason": np.int8(stop),
                "group_has_signal": True,
            }
        )
    for row in rows[3:]:
        row["group_has_signal"] = False
    return rows, [0, 0, 0, 1, 1]


def token_loss(row: dict[str, Any], t: int, config: GRPOConfig) -> float:
    """One token by the textbook, with plain floats."""
    ratio = math.exp(row["logprobs"][t] - row["old_logprobs"][t])
    advantage: float = row["advantages"]
    clipped = min(max(ratio, 1 - config.clip_low), 1 + config.clip_high)
    objective = min(ratio * advantage, clipped * advantage)
    if config.dual_clip is not None and advantage < 0:
        objective = max(objective, config.dual_clip * advantage)
    weight = math.exp(row["old_logprobs"][t] - row["rollout_logprobs"][t])
    if config.correction == "tis":
        objective *= min(weight, 2.0)
    if config.correction == "icepop":
        objective *= weight if 0.5 <= weight <= 5.0 else 0.0
    d = row["logprobs"][t] - row["ref_logprobs"][t]
    k3 = math.exp(-d) - 1 + d
    kl = {"k2": d * d / 2, "k3": k3, "weighted_k3": ratio * k3, None: k3}[config.kl_estimator]
    entropy: float = row["entropy"][t]
    return -objective + config.kl_coefficient * kl - config.entropy_coefficient * entropy


def update_loss(rows: list[dict[str, Any]], groups: list[int], config: GRPOConfig) -> float:
    """The loss of an update by the textbook: nested loops over groups, rows and tokens."""
    kept = []
    for row, group in zip(rows, groups, strict=True):
        excluded = (config.mask_truncated and row["stop_reason"] == 1) or (
            config.drop_equal_groups and not row["group_has_signal"]
        )
        if not excluded:
            kept.append((group, [token_loss(row, t, config) for t in range(len(row["logprobs"]))]))
    flat = [loss for _, losses in kept for loss in losses]
    if config.reduction == "token_mean":
        return sum(flat) / len(flat)
    if config.reduction == "row_mean":
        return sum(sum(losses) / len(losses) for _, losses in kept) / len(kept)
    if config.reduction == "row_sum_constant":
        assert config.constant_length is not None
        return sum(sum(losses) / config.constant_length for _, losses in kept) / len(kept)
    means, shares = [], []
    for group in set(groups):
        own = [loss for other, losses in kept if other == group for loss in losses]
        length = sum(len(row["logprobs"]) for row, other in zip(rows, groups, strict=True) if other == group)
        means.append(sum(own) / length)
        shares.append(len(own) / length)
    return sum(means) / sum(shares)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))
@pytest.mark.parametrize("seed", range(3))
def test_loss_equals_the_textbook(settings: dict[str, Any], seed: int) -> None:
    rows, groups = random_rows(seed)
    algorithm = make_grpo(**settings)
    tokens = make_tokens(rows, groups, {"logprobs", "entropy"}, torch.float64)
    numerator, denominator, _ = sum_loss(algorithm, [tokens])
    expected = update_loss(rows, groups, algorithm.config)
    assert (numerator / denominator).item() == pytest.approx(expected, rel=1e-12)


def test_group_token_mean_without_a_mask_is_dapos_formula() -> None:
    rows, groups = random_rows()
    algorithm = make_grpo(reduction="group_token_mean")
    numerator, denominator, _ = sum_loss(algorithm, [make_tokens(rows, groups, {"logprobs", "entropy"}, torch.float64)])
    first = [token_loss(row, t, algorithm.config) for row in rows[:3] for t in range(len(row["logprobs"]))]
    second = [token_loss(row, t, algorithm.config) for row in rows[3:] for t in range(len(row["logprobs"]))]
    assert denominator.item() == pytest.approx(2)
    assert numerator.item() == pytest.approx(sum(first) / len(first) + sum(second) / len(second))


def test_truncated_rows_leave_no_trace() -> None:
    rows, groups = random_rows()
    algorithm = make_grpo(mask_truncated=True, reduction="row_mean")
    kept = [place for place, row in enumerate(rows) if row["stop_reason"] != StopReason.LENGTH]
    masked = sum_loss(algorithm, [make_tokens(rows, groups, {"logprobs", "entropy"})])
    absent = sum_loss(
        algorithm,
        [make_tokens([rows[place] for place in kept], [groups[place] for place in kept], {"logprobs", "entropy"})],
    )
    assert masked[0].item() == pytest.approx(absent[0].item())
    assert masked[1].item() == absent[1].item() == len(kept)


def test_nothing_left_weighs_nothing() -> None:
    rows, groups = random_rows()
    rows = [{**row, "group_has_signal": False} for row in rows]
    for reduction in ("token_mean", "row_mean", "group_token_mean"):
        algorithm = make_grpo(drop_equal_groups=True, reduction=reduction)
        numerator, denominator, _ = sum_loss(algorithm, [make_tokens(rows, groups, {"logprobs", "entropy"})])
        assert numerator.item() == 0
        assert denominator.item() == 0


def test_a_group_is_dropped_by_its_spread_and_not_by_one_advantage() -> None:
    rewards, groups = np.array([0.0, 0.5, 1.0, 0.1, 0.1, 0.1]), np.array([0, 0, 0, 1, 1, 1])
    prepared = make_grpo(drop_equal_groups=True).prepare(Trajectories(rewards, groups, Table(groups, groups)))
    assert np.asarray(prepared["advantages"])[1] == 0
    assert np.asarray(prepared["group_has_signal"]).tolist() == [True] * 3 + [False] * 3


def test_a_shifted_policy_moves_ratio_and_clip_fraction() -> None:
    rows, groups = random_rows()
    on_policy = [{**row, "old_logprobs": row["logprobs"]} for row in rows]
    shifted = [{**row, "old_logprobs": row["logprobs"] - 0.5} for row in rows]
    for moved, ratio in ((on_policy, 1.0), (shifted, math.exp(0.5))):
        tokens = make_tokens(moved, groups, {"logprobs", "entropy"}, torch.float64)
        metrics = make_grpo().loss(tokens).metrics
        assert metrics["ratio"].tolist() == pytest.approx([ratio] * len(tokens))
        positive = tokens["advantages"] > 0
        assert metrics["clip_fraction_high"].bool().tolist() == (positive & (ratio > 1.2)).tolist()
        assert not metrics["clip_fraction_low"].any()
        assert metrics["kl_old"].sum().item() == pytest.approx(len(tokens) * (ratio - 1 - math.log(ratio)))


def test_entropy_bonus_has_a_gradient_only_with_a_coefficient() -> None:
    rows, groups = random_rows()
    for coefficient in (0.0, 0.3):
        tokens = make_tokens(rows, groups, {"logprobs", "entropy"})
        loss = make_grpo(entropy_coefficient=coefficient).loss(tokens)
        (gradient,) = torch.autograd.grad(loss.value.sum(), [tokens.entropy], allow_unused=True)
        if coefficient:
            assert gradient.tolist() == pytest.approx([-coefficient] * len(tokens))
        else:
            assert gradient is None
        assert torch.equal(loss.metrics["entropy"], tokens.entropy)


@pytest.mark.parametrize(("correction", "weight"), [("tis", 2.0), ("icepop", 0.0)])
def test_an_engine_that_excludes_a_sampled_token(correction: str, weight: float) -> None:
    rows, groups = random_rows()
    rows = [{**row, "rollout_logprobs": np.full(len(row["logprobs"]), -np.inf)} for row in rows]
    metrics = make_grpo(correction=correction).loss(make_tokens(rows, groups, {"logprobs", "entropy"})).metrics
    assert set(metrics["correction_weight"].tolist()) == {weight}
    assert metrics["correction_clipped"].all()


@pytest.mark.parametrize(
    ("settings", "needs", "outputs", "correction"),
    [
        ({}, set(), {"entropy"}, "none"),
        ({"log_entropy": False}, set(), set(), "none"),
        ({"log_entropy": False, "entropy_coefficient": -0.1}, set(), {"entropy"}, "none"),
        ({"kl_coefficient": 0.1}, {"ref_logprobs"}, {"entropy"}, "none"),
        ({"correction": "tis"}, {"rollout_logprobs"}, {"entropy"}, "TIS 2.0"),
        ({"correction": "icepop", "correction_max": 4}, {"rollout_logprobs"}, {"entropy"}, "IcePop 0.5..4.0"),
        ({"mask_truncated": True}, {"stop_reason"}, {"entropy"}, "none"),
    ],
)
def test_requirements_follow_the_settings(
    settings: dict[str, Any], needs: set[str], outputs: set[str], correction: str
) -> None:
    asked = GRPOConfig.model_validate(settings).requirements()
    assert asked.needs == needs | {"old_logprobs"}
    assert asked.outputs == outputs | {"logprobs"}
    assert asked.correction == correction
    assert asked.min_group_size == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"constant_length": 5}, "constant_length would be ignored"),
        ({"reduction": "row_sum_constant"}, "needs constant_length"),
        ({"kl_estimator": "k3"}, "kl_estimator would be ignored"),
        ({"kl_coefficient": 0.1, "kl_estimator": "k1"}, "zero expected gradient"),
        ({"correction_max": 2.0}, "correction_max would be ignored"),
        ({"correction": "tis", "correction_min": 0.1}, "correction_min would be ignored"),
        ({"correction": "icepop", "correction_max": 0.4}, "above correction_max"),
        ({"dual_clip": 1.0}, "greater than 1"),
        ({"clip_hihg": 0.3}, "clip_hihg"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        GRPOConfig.model_validate(settings)

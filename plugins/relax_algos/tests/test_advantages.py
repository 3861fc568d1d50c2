"""What algorithms make of rewards beside the plain advantages that core's functions are tested for."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from relax_algos.grpo import GRPO, GRPOConfig
from relax_algos.m2po import M2PO, M2POConfig
from relax_algos.policy_gradient import PolicyGradient
from relax_algos.reinforce_plus_plus import ReinforcePlusPlus, ReinforcePlusPlusConfig
from relax_algos.reinforce_plus_plus_baseline import ReinforcePlusPlusBaseline, ReinforcePlusPlusBaselineConfig
from relax_algos.rloo import RLOO, RLOOConfig

from relax_core.api.algorithm import Trajectories
from relax_core.api.columns import Column, Table
from relax_core.api.context import Context
from relax_core.dataflow.columns import LOSS_MASK, OLD_LOGPROBS, REF_LOGPROBS, ROLLOUT_LOGPROBS, TOKENS

CONTEXT = Context(run_id="test", seed=0, directory=Path())
MASKS = [[0, 1, 1, 1], [0, 0, 1], [0, 1, 0, 1, 1], [0, 1]]
"""Of two groups of two; the third has tool output in between."""
REWARDS, GROUPS = np.array([1.0, 0.0, 0.5, 0.5]), np.array([0, 0, 1, 1])


def trajectories(rewards: np.ndarray = REWARDS, groups: np.ndarray = GROUPS, masks: Any = MASKS) -> Trajectories:
    """Old is 0.1 above the reference and 0.2 above the engine at trainable tokens, and far elsewhere."""
    specs = (OLD_LOGPROBS, REF_LOGPROBS, ROLLOUT_LOGPROBS)
    columns = {
        spec.name: Column.of(spec, [[-1.0 - shift if m else 50.0 * shift for m in mask] for mask in masks])
        for spec, shift in zip(specs, (0.0, 0.1, 0.2), strict=True)
    }
    columns["loss_mask"] = Column.of(LOSS_MASK, masks)
    columns["tokens"] = Column.of(TOKENS, [range(len(mask)) for mask in masks])
    return Trajectories(rewards, groups, Table(np.arange(len(masks)), groups, columns))


def advantages(algorithm: PolicyGradient, given: Trajectories | None = None) -> Any:
    made = algorithm.prepare(given or trajectories())["advantages"]
    return made if isinstance(made, Column) else np.asarray(made)


def test_a_kl_in_the_reward_costs_by_the_trainable_token() -> None:
    kl = RLOO(RLOOConfig(kl_coefficient=0.5), CONTEXT)
    rewards = REWARDS - 0.5 * 0.1 * np.array([3, 1, 3, 1])
    expected = [rewards[0] - rewards[1], rewards[1] - rewards[0], rewards[2] - rewards[3], rewards[3] - rewards[2]]
    assert advantages(kl).tolist() == pytest.approx(expected, rel=1e-5)


def test_a_kl_is_no_signal_of_a_group() -> None:
    config = GRPOConfig(kl_coefficient=0.5, kl_in="reward", drop_equal_groups=True)
    prepared = GRPO(config, CONTEXT).prepare(trajectories())
    assert np.asarray(prepared["group_has_signal"]).tolist() == [True, True, False, False]
    assert np.asarray(prepared["advantages"])[2:].any()


def test_long_answers_lose_reward_before_advantages_are_made() -> None:
    config = GRPOConfig(overlong_length=3, overlong_buffer=2, overlong_penalty=0.4, normalize_by_std=False)
    shaped = REWARDS - 0.4 * np.array([1, 0, 1, 0])
    centred = shaped - np.array([shaped[:2].mean()] * 2 + [shaped[2:].mean()] * 2)
    assert advantages(GRPO(config, CONTEXT)).tolist() == pytest.approx(centred.tolist())


def test_returns_run_over_trainable_tokens_only_and_are_whitened_over_all_of_them() -> None:
    config = ReinforcePlusPlusConfig(kl_coefficient=0.5, discount=0.5)
    made = advantages(ReinforcePlusPlus(config, CONTEXT))
    returns, places = [], []
    for row, (mask, reward) in enumerate(zip(MASKS, REWARDS, strict=True)):
        following, own = 0.0, np.flatnonzero(mask)[::-1]
        for t in own:
            following = -0.05 + (reward if t == own[0] else 0) + 0.5 * following
            returns.append(following)
            places.append((row, t))
    mean, deviation = np.mean(returns), np.std(returns, ddof=1)
    for (row, t), value in zip(places, returns, strict=True):
        assert made[row][t] == pytest.approx((value - mean) / deviation, rel=1e-4)
    assert all(not made[row][~np.array(mask, bool)].any() for row, mask in enumerate(MASKS))


def test_the_baseline_is_the_groups_and_the_deviation_the_batchs() -> None:
    made = advantages(ReinforcePlusPlusBaseline(ReinforcePlusPlusBaselineConfig(), CONTEXT))
    per_token = np.repeat([0.5, -0.5, 0.0, 0.0], [3, 1, 3, 1])
    expected = (np.array([0.5, -0.5, 0.0, 0.0]) - per_token.mean()) / np.std(per_token, ddof=1)
    assert made.tolist() == pytest.approx(expected.tolist())


def test_the_bound_of_m2po_is_the_batchs() -> None:
    """Old is 0.2 above the engine everywhere: the tokens with a positive advantage are pushed, 0.04 is their mean."""
    made = M2PO(M2POConfig(second_moment_budget=0.05), CONTEXT).prepare(trajectories())
    assert np.asarray(made["log_ratio_bound"]).tolist() == pytest.approx([math.sqrt(0.05)] * 4)
    made = M2PO(M2POConfig(second_moment_budget=0.0001), CONTEXT).prepare(trajectories())
    assert np.asarray(made["log_ratio_bound"]).tolist() == pytest.approx([0.01] * 4)


finite = st.floats(allow_nan=False, allow_infinity=False)
rows = st.lists(st.tuples(finite, st.integers(0, 3), st.lists(st.booleans(), max_size=4)), min_size=1, max_size=9)
ALGORITHMS = [
    GRPO(GRPOConfig(normalize_by_std=False, overlong_length=2), CONTEXT),
    GRPO(GRPOConfig(kl_coefficient=1.0, kl_in="reward"), CONTEXT),
    RLOO(RLOOConfig(kl_coefficient=1.0), CONTEXT),
    ReinforcePlusPlus(ReinforcePlusPlusConfig(kl_coefficient=1.0, discount=0.9), CONTEXT),
    ReinforcePlusPlusBaseline(ReinforcePlusPlusBaselineConfig(), CONTEXT),
    M2PO(M2POConfig(second_moment_budget=0.01), CONTEXT),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: type(algorithm).__name__)
@given(given_rows=rows)
def test_any_finite_rewards_masks_and_groups_give_finite_columns(algorithm: PolicyGradient, given_rows: Any) -> None:
    masks = [[False, *mask] for _, _, mask in given_rows]
    rewards, groups = (np.array([row[part] for row in given_rows]) for part in (0, 1))
    prepared = algorithm.prepare(trajectories(rewards, groups, masks))
    for spec in algorithm.config.requirements().produces:
        made = prepared[spec.name]
        column = made if isinstance(made, Column) else Column.of(spec, list(np.asarray(made)))
        assert np.isfinite(column.values).all()
        assert len(column) == len(given_rows)

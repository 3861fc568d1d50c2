"""Rules for ``prepare``: advantages and whatever else is made of rewards."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from relax_core.api.algorithm import ADVANTAGES, Algorithm
from relax_core.api.columns import Column
from relax_core.testing.algorithm.rows import (
    GROUPS,
    REWARDS,
    AlgorithmRows,
    prepare,
    requirements,
    skip_without_advantages,
    trajectories,
)

REWARD_SETS = {
    "large": REWARDS * 1e30,
    "nearly equal": 1.0 + REWARDS * 1e-15,
    "one outlier": np.where(np.arange(len(REWARDS)) == 4, 1e12, REWARDS),
    "beyond float32": 16777216.0 + REWARDS,
    "tiny": REWARDS * 1e-300,
}


class PrepareRules(AlgorithmRows):
    """What an algorithm makes of rewards."""

    advantages_from_rewards = True
    """Whether equal rewards leave nothing to learn; not so where advantages also come from other columns."""

    @pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, -3.3, 1e9 + 0.1, 1e300, -1e308, 1e-300, 5e-324])
    def test_equal_rewards_give_exactly_zero_advantage(self, algorithm: Algorithm, reward: float) -> None:
        skip_without_advantages(algorithm)
        if not self.advantages_from_rewards:
            pytest.skip("advantages come from more than rewards")
        rows = self.make_rows(algorithm)
        advantages = prepare(algorithm, rows, np.full(len(rows), reward), GROUPS)[ADVANTAGES.name]
        assert not np.any(np.asarray(advantages.values)), (
            f"equal rewards of {reward} give advantages {advantages.values}"
        )

    @pytest.mark.parametrize("rewards", REWARD_SETS.values(), ids=REWARD_SETS)
    def test_what_is_prepared_is_finite(self, algorithm: Algorithm, rewards: np.ndarray) -> None:
        for name, column in prepare(algorithm, self.make_rows(algorithm), rewards, GROUPS).items():
            assert np.isfinite(column.values).all(), f"rewards {rewards} give {name} {column.values}"

    def test_a_trajectory_that_is_alone_in_its_group_is_finite(self, algorithm: Algorithm) -> None:
        """The rewards of the others may have abstained, whatever ``min_group_size`` says."""
        rows = self.make_rows(algorithm)
        for name, column in prepare(algorithm, rows, REWARDS, np.arange(len(rows))).items():
            assert np.isfinite(column.values).all(), f"groups of one trajectory give {name} {column.values}"

    def test_permuting_trajectories_permutes_what_is_prepared(self, algorithm: Algorithm) -> None:
        rows = self.make_rows(algorithm)
        order = np.random.default_rng(1).permutation(len(rows))
        before = prepare(algorithm, rows, REWARDS, GROUPS)
        after = prepare(algorithm, [rows[place] for place in order], REWARDS[order], GROUPS[order])
        for name, column in before.items():
            expected = column.select(order).values
            assert np.allclose(after[name].values, expected, atol=1e-6), f"{name} depends on the order of trajectories"

    def test_other_groups_do_not_matter(self, algorithm: Algorithm) -> None:
        if requirements(algorithm).scope == "batch":
            pytest.skip("prepares over the whole batch")
        rows = self.make_rows(algorithm)
        chosen = np.flatnonzero(GROUPS == 1)
        whole = prepare(algorithm, rows, REWARDS, GROUPS)
        alone = prepare(algorithm, [rows[place] for place in chosen], REWARDS[chosen], np.zeros(len(chosen), np.int64))
        for name, column in alone.items():
            expected = whole[name].select(chosen).values
            assert np.array_equal(column.values, expected), f"scope is 'group', but {name} depends on other groups"

    def test_preparing_is_a_function(self, algorithm: Algorithm) -> None:
        rows = self.make_rows(algorithm)
        given = trajectories(requirements(algorithm), rows, REWARDS, GROUPS)
        before = deepcopy(given)
        first, second = algorithm.prepare(given), algorithm.prepare(given)
        unchanged = np.array_equal(given.rewards, before.rewards) and np.array_equal(given.groups, before.groups)
        assert unchanged, "prepare() changes the rewards or groups that it is given"
        for name, column in before.table.columns.items():
            assert np.array_equal(given.table[name].values, column.values), f"prepare() changes the column {name}"
        for name, values in first.items():
            assert np.array_equal(_flat(values), _flat(second[name])), f"prepare() gives other {name} the second time"


def _flat(values: Any) -> np.ndarray:
    """All numbers of what ``prepare`` gave for one column, end to end."""
    entries = values.values if isinstance(values, Column) else values
    return np.concatenate([np.ravel(np.asarray(entry)) for entry in entries])

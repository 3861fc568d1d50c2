import math
import statistics
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relax_core.objectives.advantages import (
    LARGEST_ADVANTAGE,
    group_relative_advantages,
    has_signal,
    leave_one_out_advantages,
)

finite = st.floats(allow_nan=False, allow_infinity=False)
ordinary = st.floats(min_value=-1e3, max_value=1e3)


def textbook(rewards: list[float], normalize_by_std: bool) -> list[float]:
    """One group, in fractions: even a float64 mean of three equal rewards can differ from them."""
    mean = sum(map(Fraction, rewards)) / len(rewards)
    centred = [float(Fraction(reward) - mean) for reward in rewards]
    if not normalize_by_std or len(rewards) == 1:
        return centred
    return [deviation / (statistics.stdev(rewards) + 1e-6) for deviation in centred]


@given(st.lists(st.tuples(ordinary, st.integers(0, 3)), min_size=1, max_size=30), st.booleans())
def test_equals_the_textbook_in_any_order_of_groups(pairs: list[tuple[float, int]], normalize_by_std: bool) -> None:
    rewards = np.array([reward for reward, _ in pairs])
    groups = np.array([group for _, group in pairs])
    advantages = group_relative_advantages(rewards, groups, normalize_by_std)
    for group in set(groups.tolist()):
        expected = textbook(rewards[groups == group].tolist(), normalize_by_std)
        assert advantages[groups == group].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(finite, st.integers(1, 9), st.booleans())
def test_equal_rewards_give_exactly_zero(reward: float, count: int, normalize_by_std: bool) -> None:
    rewards = np.full(count, reward)
    advantages = group_relative_advantages(rewards, np.zeros(count, np.int64), normalize_by_std)
    assert not advantages.any()
    assert not has_signal(rewards, np.zeros(count, np.int64)).any()


@given(st.lists(finite, min_size=1, max_size=20))
def test_any_finite_rewards_give_bounded_advantages(values: list[float]) -> None:
    rewards, groups = np.array(values), np.zeros(len(values), np.int64)
    bound = (len(values) - 1) / math.sqrt(len(values))
    normalized = group_relative_advantages(rewards, groups)
    assert np.isfinite(normalized).all()
    assert np.abs(normalized).max() <= bound * (1 + 1e-12)
    centred = group_relative_advantages(rewards, groups, normalize_by_std=False)
    assert np.isfinite(centred).all()
    assert np.isfinite(centred.astype(np.float32)).all()
    largest, smallest = max(values), min(values)
    assert np.abs(centred / 2).max() <= (largest / 2 - smallest / 2) * (1 + 1e-12)


@given(st.lists(finite, min_size=2, max_size=12), st.randoms())
@example([0.0, 0.0, 1.7976931348622041e308, 0.0, -1.7976931348622047e308], Random(0))
def test_order_within_a_group_does_not_matter(values: list[float], random: Random) -> None:
    order = list(range(len(values)))
    random.shuffle(order)
    rewards, groups = np.array(values), np.zeros(len(values), np.int64)
    before = group_relative_advantages(rewards, groups)
    assert np.array_equal(group_relative_advantages(rewards[order], groups), before[order])
    left_out = leave_one_out_advantages(rewards, groups)
    assert np.array_equal(leave_one_out_advantages(rewards[order], groups), left_out[order])


@given(st.lists(finite, min_size=1, max_size=8), st.lists(finite, min_size=1, max_size=8))
def test_other_groups_have_no_influence_at_all(ours: list[float], theirs: list[float]) -> None:
    alone = group_relative_advantages(np.array(ours), np.zeros(len(ours), np.int64))
    groups = np.array([5] * len(theirs) + [2] * len(ours))
    together = group_relative_advantages(np.array(theirs + ours), groups)
    assert np.array_equal(together[len(theirs) :], alone)


def test_scale_of_rewards_hardly_matters() -> None:
    rewards, groups = np.array([1.0, 0.0, 0.0, 1.0, 0.0]), np.zeros(5, np.int64)
    expected = group_relative_advantages(rewards, groups)
    assert np.allclose(group_relative_advantages(rewards * 1.7e308, groups), expected, rtol=1e-5)
    assert np.allclose(group_relative_advantages(1e15 + rewards, groups), expected, rtol=1e-12)
    assert np.array_equal(group_relative_advantages(rewards * 1e-320, groups), np.zeros(5))


def test_worked_example() -> None:
    rewards, groups = np.array([1.0] * 3 + [0.0] * 5), np.zeros(8, np.int64)
    assert group_relative_advantages(rewards, groups)[[0, -1]].tolist() == pytest.approx([1.2076, -0.7246], abs=1e-4)
    centred = group_relative_advantages(rewards, groups, normalize_by_std=False)
    assert centred.tolist() == [0.625] * 3 + [-0.375] * 5


def test_signal_is_a_matter_of_the_group() -> None:
    rewards, groups = np.array([0.5, 0.2, 0.0, 0.2, 1.0]), np.array([0, 1, 0, 1, 0])
    assert has_signal(rewards, groups).tolist() == [True, False, True, False, True]


@given(st.lists(st.tuples(ordinary, st.integers(0, 3)), min_size=1, max_size=30))
def test_leave_one_out_takes_off_the_mean_of_the_others(pairs: list[tuple[float, int]]) -> None:
    rewards = np.array([reward for reward, _ in pairs])
    groups = np.array([group for _, group in pairs])
    advantages = leave_one_out_advantages(rewards, groups)
    for place, (reward, group) in enumerate(pairs):
        others = [Fraction(r) for other, (r, g) in enumerate(pairs) if g == group and other != place]
        expected = float(Fraction(reward) - sum(others) / len(others)) if others else 0.0
        assert advantages[place] == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(st.lists(finite, min_size=1, max_size=12))
def test_leave_one_out_fits_into_float32(values: list[float]) -> None:
    advantages = leave_one_out_advantages(np.array(values), np.zeros(len(values), np.int64))
    assert np.abs(advantages).max() <= LARGEST_ADVANTAGE
    assert np.isfinite(advantages.astype(np.float32)).all()


def test_no_trajectories() -> None:
    nothing = np.zeros(0)
    assert len(group_relative_advantages(nothing, np.zeros(0, np.int64))) == 0
    assert len(has_signal(nothing, np.zeros(0, np.int64))) == 0
    assert len(leave_one_out_advantages(nothing, np.zeros(0, np.int64))) == 0

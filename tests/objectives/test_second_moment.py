import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.objectives.second_moment import second_moment_bound

number = st.floats(min_value=-3, max_value=3)
sign = st.sampled_from([-1.0, 0.0, 1.0])


def greedy(log_ratios: list[float], budget: float) -> float:
    """The paper's way: leave out the farthest token until the mean square of the rest fits."""
    kept = sorted(map(abs, log_ratios))
    while kept and sum(value**2 for value in kept) / len(kept) > budget:
        kept = [value for value in kept if value < kept[-1]]
    return max([math.sqrt(budget), *kept])


@given(st.lists(st.tuples(number, sign), max_size=12), st.sampled_from([0.01, 0.04, 1.0]))
def test_equals_leaving_out_one_by_one(tokens: list[tuple[float, float]], budget: float) -> None:
    log_ratios, advantages = np.array(tokens).reshape(-1, 2).T
    pushed = [value for value, advantage in tokens if value * advantage > 0]
    assert second_moment_bound(log_ratios, advantages, budget) == pytest.approx(greedy(pushed, budget))


def test_what_is_infinite_is_beyond_and_what_is_not_a_number_does_not_count() -> None:
    log_ratios = np.array([0.1, math.inf, -math.inf, math.nan, math.inf])
    assert second_moment_bound(log_ratios, np.array([1.0, 1.0, -1.0, 1.0, 0.0]), 0.0004) == pytest.approx(0.02)
    assert second_moment_bound(log_ratios, np.array([1.0, 1.0, -1.0, 1.0, 0.0]), 0.01) == pytest.approx(0.1)

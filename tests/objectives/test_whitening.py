import math
import statistics
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.objectives.whitening import whiten

finite = st.floats(allow_nan=False, allow_infinity=False)
ordinary = st.floats(min_value=-1e3, max_value=1e3)


@given(st.lists(st.tuples(ordinary, st.integers(1, 5)), min_size=2, max_size=20))
def test_equals_the_textbook_with_every_value_as_often_as_it_counts(pairs: list[tuple[float, int]]) -> None:
    values, counts = np.array([value for value, _ in pairs]), np.array([count for _, count in pairs])
    repeated = np.repeat(values, counts).tolist()
    mean, variance = statistics.fmean(repeated), statistics.variance(repeated)
    expected = (values - mean) / math.sqrt(variance + 1e-8)
    assert whiten(values, counts).tolist() == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-6)
    assert whiten(np.repeat(values, counts)).tolist() == pytest.approx(np.repeat(expected, counts), rel=1e-6, abs=1e-6)


@given(finite, st.lists(st.integers(0, 4), min_size=1, max_size=9))
def test_equal_values_give_exactly_zero(value: float, counts: list[int]) -> None:
    assert not whiten(np.full(len(counts), value), np.array(counts)).any()


@given(st.lists(st.tuples(finite, st.integers(0, 9)), min_size=1, max_size=20))
def test_any_finite_values_give_bounded_ones(pairs: list[tuple[float, int]]) -> None:
    values, counts = np.array([value for value, _ in pairs]), np.array([count for _, count in pairs])
    whitened = whiten(values, counts)
    assert np.isfinite(whitened).all()
    assert np.abs(whitened).max() <= math.sqrt(counts.sum()) * (1 + 1e-9)


@given(st.lists(st.tuples(finite, st.integers(0, 9)), min_size=2, max_size=12), st.randoms())
def test_order_does_not_matter(pairs: list[tuple[float, int]], random: Random) -> None:
    values, counts = np.array([value for value, _ in pairs]), np.array([count for _, count in pairs])
    order = random.sample(range(len(pairs)), len(pairs))
    assert np.allclose(whiten(values[order], counts[order]), whiten(values, counts)[order], atol=1e-6)


def test_values_that_do_not_count_have_no_influence() -> None:
    values, counts = np.array([1e308, 1.0, 0.0, -1e308]), np.array([0, 2, 3, 0])
    assert whiten(values, counts)[1:3].tolist() == whiten(values[1:3], counts[1:3]).tolist()
    assert whiten(values, counts)[[0, 3]].tolist() == [0.0, 0.0]
    assert not whiten(values, np.zeros(4, np.int64)).any()
    assert len(whiten(np.zeros(0))) == 0

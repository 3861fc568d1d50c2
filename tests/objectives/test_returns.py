import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.objectives.returns import returns_to_go

number = st.floats(min_value=-10, max_value=10)


@given(st.lists(number, max_size=8), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_equals_the_sum_it_stands_for(rewards: list[float], discount: float) -> None:
    count = len(rewards)
    expected = [sum(discount ** (later - t) * rewards[later] for later in range(t, count)) for t in range(count)]
    assert returns_to_go(np.array(rewards), discount).tolist() == pytest.approx(expected)

import numpy as np
import pytest

from relax_core.objectives.shaping import soft_overlong_punishment


def test_the_three_cases_of_the_paper() -> None:
    punished = soft_overlong_punishment(np.array([0, 80, 81, 90, 100, 101, 5000]), longest=100, buffer=20)
    assert punished.tolist() == pytest.approx([0, 0, -0.05, -0.5, -1, -1, -1])

"""What is still to come: discounted sums of rewards over the rest of a row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def returns_to_go(rewards: FloatArray, discount: float = 1.0) -> FloatArray:
    """``G_t = r_t + discount · G_{t+1}`` over the trainable tokens of one row, prompt and tool output left out.

    Args:
        rewards: ``[T]`` reward of each trainable token.
        discount: γ between 0 and 1; 1 sums.
    """
    if discount == 1:
        return np.cumsum(rewards[::-1])[::-1]
    returns = np.empty(len(rewards))
    following = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        following = rewards[t] + discount * following
        returns[t] = following
    return returns

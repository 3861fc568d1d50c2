"""A trust region that keeps the second moment of log-ratios within a budget (M2PO, arXiv 2510.01161)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def second_moment_bound(log_ratio: FloatArray, advantages: FloatArray, budget: float) -> float:
    """The largest |log-ratio| up to which tokens can be kept.

    Counted are tokens whose ratio has moved the way their advantage pushes it; the bound is the largest for which the
    mean square of those within it is at most the budget, and never below ``sqrt(budget)``.

    Args:
        log_ratio: ``[N]`` of all trainable tokens of a batch, new minus sampling policy. Infinite values are beyond
            every bound; NaN is not counted.
        advantages: ``[N]``.
        budget: Largest mean of the squares; positive.
    """
    with np.errstate(invalid="ignore"):  # infinity times no advantage
        pushed = np.sort(np.abs(log_ratio[log_ratio * np.sign(advantages) > 0]))
    means = np.cumsum(pushed**2) / np.arange(1, len(pushed) + 1)
    last_of_equals = np.append(pushed[1:] > pushed[:-1], True) if len(pushed) else np.zeros(0, bool)
    kept = pushed[last_of_equals & (means <= budget)]
    return float(max(np.sqrt(budget), kept.max(initial=0.0)))

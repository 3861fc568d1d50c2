"""Normalisation over a whole batch (REINFORCE++, arXiv 2501.03262, equation 10)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def whiten(values: FloatArray, weights: npt.NDArray[np.int64] | None = None, epsilon: float = 1e-8) -> FloatArray:
    """Values minus their mean, over their standard deviation.

        y = (x - mean) / sqrt(variance + epsilon)     variance with Σ weights - 1 in the denominator, as verl has it

    Equal values give exactly 0 and no finite values overflow: deviations are taken from the first value and scaled to
    [-1, 1] before anything is summed.

    Args:
        values: ``[n]`` finite.
        weights: ``[n]`` how many times each value counts, such as the tokens of a row; 1 each when absent.
        epsilon: Added to the variance, in the unit of the squared values; positive.

    Returns:
        ``[n]``, at most ``sqrt(Σ weights)`` in magnitude. Values whose weight is 0 have no influence.
    """
    count = np.ones(len(values)) if weights is None else weights.astype(np.float64)
    counted = np.flatnonzero(count)
    if not len(counted):
        return np.zeros(len(values))
    halves = values / 2  # the difference of two halves always fits into a float64
    deviations = np.where(count > 0, halves - halves[counted[0]], 0.0)
    scale = np.abs(deviations).max() or 1.0
    scaled = deviations / scale
    centred = scaled - (count @ scaled) / count.sum()
    variance = (count @ centred**2) / max(count.sum() - 1, 1)
    with np.errstate(over="ignore"):  # values that differ by next to nothing: an infinite divisor, 0
        divisor = np.sqrt(variance + (np.sqrt(epsilon) / 2 / scale) ** 2)
    whitened: FloatArray = np.where(count > 0, centred / divisor, 0.0)
    return whitened

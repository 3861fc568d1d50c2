"""Advantages relative to the group: the other answers to the same task are the baseline."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import IntArray

FloatArray = npt.NDArray[np.float64]
LARGEST_ADVANTAGE = float(np.finfo(np.float32).max)
"""Advantages without a normalisation have the unit of the rewards; beyond what float32 can hold they saturate."""


def group_relative_advantages(
    rewards: FloatArray, groups: IntArray, normalize_by_std: bool = True, epsilon: float = 1e-6
) -> FloatArray:
    """Reward minus the group's mean, over the group's standard deviation (GRPO, arXiv 2402.03300).

        A_i = (r_i - mean(r)) / (std(r) + epsilon)    std with n - 1 in the denominator, as TRL and verl have it
        A_i =  r_i - mean(r)                          without ``normalize_by_std`` (Dr. GRPO, arXiv 2503.20783)

    Deviations are taken from the group's smallest reward, scaled to [0, 1] and summed in ascending order. So equal
    rewards give exactly 0, whatever the number (0.1 has no exact mean), the order of trajectories changes no bit of a
    result, and no finite rewards overflow: normalised advantages never exceed ``(n - 1) / sqrt(n)`` in magnitude.
    Without normalisation they are in the unit of the rewards, and saturate at :data:`LARGEST_ADVANTAGE`. A group of one
    has advantage 0.

    Args:
        rewards: ``[n]`` finite.
        groups: ``[n]`` group of each trajectory, in any order.
        normalize_by_std: Whether to divide by the standard deviation.
        epsilon: Added to it, in the unit of the rewards; positive.

    Returns:
        ``[n]``. The other groups have no influence on a group's numbers.
    """
    _, group, counts = np.unique(groups, return_inverse=True, return_counts=True)
    halves = rewards / 2  # the difference of two halves always fits into a float64
    smallest, scale = np.full(len(counts), np.inf), np.zeros(len(counts))
    np.minimum.at(smallest, group, halves)
    deviations = halves - smallest[group]
    np.maximum.at(scale, group, deviations)
    scale[scale == 0] = 1.0
    scaled = deviations / scale[group]
    centred = scaled - (_sums(scaled, group) / counts)[group]
    if not normalize_by_std:
        return np.clip(centred * scale[group], -LARGEST_ADVANTAGE / 2, LARGEST_ADVANTAGE / 2) * 2
    std = np.sqrt(_sums(centred**2, group) / np.maximum(counts - 1, 1))
    with np.errstate(over="ignore"):  # rewards that differ by next to nothing: an infinite divisor, advantage 0
        divisor = std + epsilon / 2 / scale
    advantages: FloatArray = centred / divisor[group]
    return advantages


def _sums(values: FloatArray, group: IntArray) -> FloatArray:
    """Sum of each group, added up in ascending order whatever the order of the values."""
    order = np.argsort(values, kind="stable")
    return np.bincount(group[order], values[order]).astype(np.float64)


def leave_one_out_advantages(rewards: FloatArray, groups: IntArray) -> FloatArray:
    """Reward minus the mean of the others in the group (RLOO, arXiv 2402.14740).

        A_i = r_i - mean of the other r = (r_i - mean(r)) · n / (n - 1)

    As exact and as bounded as :func:`group_relative_advantages` without normalisation. A group of one has advantage 0.

    Args:
        rewards: ``[n]`` finite.
        groups: ``[n]`` group of each trajectory, in any order.
    """
    counts = np.unique(groups, return_inverse=True, return_counts=True)
    size = counts[2][counts[1]]
    factor = size / np.maximum(size - 1, 1)
    centred = group_relative_advantages(rewards, groups, normalize_by_std=False)
    return np.clip(centred * factor, -LARGEST_ADVANTAGE, LARGEST_ADVANTAGE)


def has_signal(rewards: FloatArray, groups: IntArray) -> npt.NDArray[np.bool_]:
    """``[n]``: whether the rewards of the trajectory's group differ at all.

    This is decided on the group, never on one advantage: with rewards 0, 0.5 and 1 the middle one has advantage 0 in a
    group that does carry signal.
    """
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    differs = rewards != rewards[first][group]
    return (np.bincount(group, differs) > 0)[group]

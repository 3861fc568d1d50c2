"""Clipped surrogate losses of policy gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ClippedLoss:
    """A surrogate loss and where its gradient was cut.

    Args:
        value: Loss to minimise, with the gradient of the ratio.
        low: bool, where the lower bound holds a token with negative advantage.
        high: bool, where the upper bound holds a token with positive advantage.
        dual: bool, where the dual bound holds a token with negative advantage; all false without one.
    """

    value: Tensor
    low: Tensor
    high: Tensor
    dual: Tensor


def clipped_policy_loss(
    ratio: Tensor, advantages: Tensor, low: float, high: float, dual: float | None = None
) -> ClippedLoss:
    """PPO's clipped loss (Schulman et al. 2017, arXiv 1707.06347, equation 7), with two bounds (DAPO, 2503.14476).

        loss = -min(ratio * A, clip(ratio, 1 - low, 1 + high) * A)

    With ``dual`` = c > 1 (Ye et al. 2019, arXiv 1912.09729), which bounds the loss of a token with negative
    advantage that became much more probable:

        loss = min(loss, -c * A)   where A < 0

    Args:
        ratio: Current over old policy, finite (see :func:`~relax_core.objectives.ratios.importance_ratio`).
        advantages: Same shape, without gradient.
        low: Distance of the lower bound from 1.
        high: Distance of the upper bound from 1.
        dual: The bound c, or ``None`` for none.

    Where the ratio is 1 the gradient is ``-A``, that of the plain policy gradient. NaN in either input stays NaN.
    """
    value = -(ratio * advantages).minimum(ratio.clamp(1 - low, 1 + high) * advantages)
    negative = advantages < 0
    beyond_dual = negative & False
    if dual is not None:
        value = value.minimum(-dual * advantages).where(negative, value)
        beyond_dual = negative & (ratio > dual)
    return ClippedLoss(
        value=value,
        low=negative & (ratio < 1 - low),
        high=(advantages > 0) & (ratio > 1 + high),
        dual=beyond_dual,
    )

"""Weights for the gap between the policy that sampled (rollout) and the proximal policy (old).

    weight = exp(old_logprobs - rollout_logprobs), bounded; of a token, or of a row with the sum over its tokens

They are constants of the loss (no gradient) and belong to the numerator only: an expectation under the old policy is
estimated by the weighted sum over *all* tokens that were sampled, divided by their number.

An engine that reports ``-inf`` for a token it sampled gives an infinite weight: the bound under truncation, 0 under
masking. ``-inf`` on the old side gives 0. ``-inf`` on both sides is NaN and stays so, as every NaN does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Correction:
    """Weights, finite and not negative unless the input was NaN, and (bool) where a bound changed them."""

    weights: Tensor
    clipped: Tensor


def truncated_importance_weights(log_ratio: Tensor, maximum: float) -> Correction:
    """TIS: ``min(weight, maximum)`` (Ionides 2008; between engine and trainer: Yao et al. 2025,
    https://fengyao.notion.site/off-policy-rl).

    Args:
        log_ratio: ``[N]`` old minus rollout log-probabilities, or ``[R]`` their sums over the rows.
        maximum: Largest weight.
    """
    weights = log_ratio.detach().exp()
    return Correction(weights.clamp(max=maximum), weights > maximum)


def masked_importance_weights(log_ratio: Tensor, minimum: float, maximum: float) -> Correction:
    """The weight inside ``[minimum, maximum]``, 0 outside: IcePop (Ling team 2025, arXiv 2510.18855) for tokens,
    masked importance sampling (Liu et al. 2025, https://richardli.xyz/rl-collapse) for rows.

    Args:
        log_ratio: ``[N]`` old minus rollout log-probabilities, or ``[R]`` their sums over the rows.
        minimum: Smallest weight that is kept.
        maximum: Largest weight that is kept.
    """
    weights = log_ratio.detach().exp()
    outside = (weights < minimum) | (weights > maximum)
    return Correction(weights.masked_fill(outside, 0.0), outside)

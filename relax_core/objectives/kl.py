"""Per-token estimators of a Kullback-Leibler divergence (Schulman 2020, http://joschu.net/blog/kl-approx.html).

For tokens drawn from p, with ``log_ratio = log p(token) - log q(token)``, each has an expected *value* near KL(p‖q):

    k1 = log_ratio                         unbiased, may be negative
    k2 = log_ratio² / 2                    biased, small variance
    k3 = exp(-log_ratio) - 1 + log_ratio   unbiased, never negative

What trains is the expected *gradient*; p is the policy that is trained and that drew the tokens.

As a loss, the estimator is differentiated:

    k1             E[∇log p]                  = 0: the penalty would be printed and do nothing
    k2             E[log_ratio · ∇log p]      = ∇KL(p‖q), exact
    k3             E[(1 - q/p) · ∇log p]      = ∇KL(q‖p), the other direction; equal to first order where p is near q
    low_variance   k3, at most 10             = that of k3, and none from a token beyond
    weighted_k3    ratio · k3, ratio = p/p_old = ∇KL(p‖q), exact also for tokens of p_old (DeepSeek-V3.2, 2512.02556)

In the reward, its value multiplies ∇log p:

    k1             E[log_ratio · ∇log p]      = ∇KL(p‖q), exact
    k2, k3         E[k · ∇log p]              = 0 to first order where p is near q: the penalty would do nothing
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import numpy.typing as npt

from relax_core.objectives.ratios import MAX_EXPONENT

if TYPE_CHECKING:
    from torch import Tensor

KLEstimator = Literal["k2", "k3", "low_variance", "weighted_k3"]
"""The estimators that are right as a loss."""

LARGEST_LOW_VARIANCE = 10.0
"""Bound of ``low_variance``, that of verl's ``low_var_kl``."""


def k2(log_ratio: Tensor) -> Tensor:
    """``log_ratio² / 2``."""
    return log_ratio.square() / 2


def k3(log_ratio: Tensor) -> Tensor:
    """``exp(-log_ratio) - 1 + log_ratio``.

    Below ``-MAX_EXPONENT`` (q more than exp(20) times as probable as p) the value is constant and has no gradient, so
    that nothing overflows. On the other side it grows linearly, up to infinity for a token that q excludes.
    """
    bounded = log_ratio.clamp(min=-MAX_EXPONENT)
    return (-bounded).exp() - 1 + bounded


def low_variance(log_ratio: Tensor) -> Tensor:
    """``min(k3, 10)``: finite for every token, without a gradient beyond."""
    return k3(log_ratio).clamp(max=LARGEST_LOW_VARIANCE)


def kl_loss(estimator: KLEstimator, log_ratio: Tensor, ratio: Tensor) -> Tensor:
    """A KL penalty with a right gradient; see the table at the head of this module.

    Args:
        estimator: ``k2``, ``k3``, ``low_variance`` or ``weighted_k3`` (= ``ratio · k3``).
        log_ratio: Current minus reference log-probabilities, with gradient.
        ratio: Current over old policy, with gradient; read by ``weighted_k3`` only.

    Raises:
        ValueError: ``k1``, whose expected gradient is zero, or an unknown name.
    """
    if estimator == "k2":
        return k2(log_ratio)
    if estimator == "k3":
        return k3(log_ratio)
    if estimator == "low_variance":
        return low_variance(log_ratio)
    if estimator == "weighted_k3":
        return ratio * k3(log_ratio)
    reason = "has zero expected gradient as a loss" if estimator == "k1" else "is unknown"
    raise ValueError(f"KL estimator {estimator!r} {reason}; use one of {', '.join(get_args(KLEstimator))}")


def kl_penalty(logprobs: npt.NDArray[np.floating], reference: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """k1 of each token for a reward, bounded to ±``MAX_EXPONENT`` nats: a token that one side excludes stays finite.

    Args:
        logprobs: Of the policy that is penalised.
        reference: Same shape.
    """
    difference = logprobs.astype(np.float64) - reference
    bounded: npt.NDArray[np.float64] = np.clip(difference, -MAX_EXPONENT, MAX_EXPONENT)
    return bounded

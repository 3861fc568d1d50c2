"""Which rows are too far from the policy that sampled them to be learned from.

A row's distance is a mean over its tokens, so it does not grow with the length of an answer as a product would.
Everything here is a constant of the loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relax_core.objectives.kl import k3
from relax_core.objectives.ratios import importance_ratio

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.api.tokens import Tokens


@dataclass(frozen=True)
class Rejection:
    """``rejected``: bool, which are; ``distance``: the number that decided it. Both ``[R]``."""

    rejected: Tensor
    distance: Tensor


def geometric_rejection(tokens: Tokens, log_ratio: Tensor, minimum: float, maximum: float) -> Rejection:
    """Rejects rows whose geometric mean of weights, ``exp(mean of log_ratio)``, is outside ``[minimum, maximum]``
    (Liu et al. 2025, https://richardli.xyz/rl-collapse; verl's ``seq_mean_k1``).

    Args:
        tokens: The micro-batch.
        log_ratio: ``[N]`` old minus rollout log-probabilities.
        minimum: Smallest mean that is kept.
        maximum: Largest mean that is kept.
    """
    mean = importance_ratio(tokens.row_mean(log_ratio.detach()))
    return Rejection((mean < minimum) | (mean > maximum), mean)


def divergence_rejection(tokens: Tokens, log_ratio: Tensor, maximum: float) -> Rejection:
    """Rejects rows whose mean k3 estimate of KL(rollout‖old), in nats per token, exceeds ``maximum`` (verl's
    ``seq_mean_k3``). Never negative, so that deviations in both directions add up instead of cancelling.

    Args:
        tokens: The micro-batch.
        log_ratio: ``[N]`` old minus rollout log-probabilities.
        maximum: Largest mean that is kept.
    """
    mean = tokens.row_mean(k3(-log_ratio.detach()))
    return Rejection(mean > maximum, mean)


def off_policy_rows(tokens: Tokens, rollout: Tensor, maximum: float) -> Rejection:
    """Rows that the current policy makes less probable than the one that sampled them did, by more than ``maximum``
    nats per token: off-policy sequence masking (DeepSeek-V3.2, arXiv 2512.02556, section 3.1), which leaves them out
    where the advantage is negative.

    Args:
        tokens: The micro-batch.
        rollout: ``[N]`` log-probabilities of the engine.
        maximum: Largest mean of rollout minus current log-probability.
    """
    mean = tokens.row_mean(rollout - tokens.logprobs.detach())
    return Rejection(mean > maximum, mean)

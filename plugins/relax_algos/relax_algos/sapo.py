"""Soft Adaptive Policy Optimization (Gao et al. 2025, arXiv 2511.20347).

GRPO with a smooth gate in place of the clip:

    f(r)   = 4 / τ · sigmoid(τ · (r - 1))         τ = τ_positive where A > 0, else τ_negative
    loss_t = -f(r_t) · A_i                        r_t = p_current(token t) / p_old(token t), A_i as in GRPO
    loss   = mean over answers of Σ_t loss_t / T_i

The slope f'(r) = 4 · g · (1 - g), with g the sigmoid, is 1 at r = 1 whatever τ, and falls off on both sides. A larger
τ falls off faster: negative advantages, whose gradient spreads over the whole vocabulary, are damped a little more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import Field

from relax_algos.group_relative import GroupRelative, GroupRelativeConfig
from relax_core.api.algorithm import ADVANTAGES
from relax_core.objectives.reduction import Reduction

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.api.tokens import Tokens


class SAPOConfig(GroupRelativeConfig):
    """Settings of SAPO."""

    temperature_positive: float = Field(1.0, gt=0, description="τ of tokens with a positive advantage.")
    temperature_negative: float = Field(1.05, gt=0, description="τ of the others.")
    reduction: Reduction = Field("row_mean", description="How tokens become one loss, and what its denominator is.")


class SAPO(GroupRelative):
    """A sigmoid gate on the ratio of tokens."""

    config: SAPOConfig

    def surrogate(self, tokens: Tokens, ratio: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """``loss_t`` at the head of this module; the metric ``gate_slope`` is f'(r_t), 1 on policy."""
        advantages = tokens[ADVANTAGES.name]
        temperature = advantages.new_full((len(tokens),), self.config.temperature_negative)
        temperature = temperature.masked_fill(advantages > 0, self.config.temperature_positive)
        gate = (temperature * (ratio - 1)).sigmoid()
        slope = (4 * gate * (1 - gate)).detach()
        return -4 / temperature * gate * advantages, {"gate_slope": slope}

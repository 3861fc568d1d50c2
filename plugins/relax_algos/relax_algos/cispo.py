"""Clipped importance-sampling-weight policy optimization (MiniMax-M1, arXiv 2506.13585, equation 4).

REINFORCE whose importance weight is clipped, so that no token ever loses its gradient:

    loss_t = -sg[clip(r_t, 1 - clip_low, 1 + clip_high)] · A_i · log p_current(token t)       sg: no gradient
    loss   = mean over groups of Σ_i,t loss_t / Σ_i T_i           r_t and A_i as in GRPO, T_i the tokens of answer i

The paper sets no lower bound and tunes the upper one without naming it; the defaults are no lower bound and weights up
to 5 (ScaleRL, arXiv 2510.13786, and TRL recommend 4 to 5). With ``one_sided`` only the bound on the side that the
advantage pushes to is applied, as the first Relax had it:

    A >= 0: min(r_t, 1 + clip_high)        A < 0: max(r_t, 1 - clip_low)
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


class CISPOConfig(GroupRelativeConfig):
    """Settings of CISPO."""

    clip_low: float = Field(1.0, ge=0, le=1, description="The weight is at least 1 - clip_low; 1 sets no bound.")
    clip_high: float = Field(4.0, ge=0, description="The weight is at most 1 + clip_high.")
    one_sided: bool = Field(False, description="Bound only from above where A >= 0, only from below where A < 0.")
    reduction: Reduction = Field(
        "group_token_mean", description="How tokens become one loss, and what its denominator is."
    )


class CISPO(GroupRelative):
    """Log-likelihood, weighed by the advantage and a clipped ratio."""

    config: CISPOConfig

    def surrogate(self, tokens: Tokens, ratio: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """``loss_t`` at the head of this module."""
        advantages, low, high = tokens[ADVANTAGES.name], 1 - self.config.clip_low, 1 + self.config.clip_high
        ratio = ratio.detach()
        weight = ratio.clamp(low, high)
        if self.config.one_sided:
            weight = ratio.clamp(max=high).where(advantages >= 0, ratio.clamp(min=low))
        return -weight * advantages * tokens.logprobs, {"clip_fraction": (weight != ratio).to(ratio.dtype)}

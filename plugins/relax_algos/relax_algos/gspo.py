"""Group Sequence Policy Optimization (Zheng et al. 2025, arXiv 2507.18071).

GRPO with the ratio of a whole answer in place of that of each token:

    s_i    = exp(mean over tokens of log p_current - log p_old)      length-normalised, exponent bounded to ±20
    loss_i = -min(s_i · A_i, clip(s_i, 1 - clip_low, 1 + clip_high) · A_i),   A_i as in GRPO
    loss   = mean over answers of loss_i

A mean of many log-ratios stays near 0, so the paper clips at 3e-4 below and 4e-4 above, a thousandth of what suits
tokens. The value of s_i is given to each token with that token's own gradient ("GSPO-token", section 4.3): the sum
over an answer is the gradient of s_i, and corrections may weigh single tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import Field

from relax_algos.group_relative import GroupRelative, GroupRelativeConfig
from relax_algos.terms.clipping import ClipSettings, clipped_surrogate
from relax_core.api.algorithm import ADVANTAGES
from relax_core.dataflow.columns import OLD_LOGPROBS
from relax_core.objectives.ratios import sequence_ratio
from relax_core.objectives.reduction import Reduction

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.api.tokens import Tokens


class GSPOConfig(ClipSettings, GroupRelativeConfig):
    """Settings of GSPO."""

    clip_low: float = Field(3e-4, ge=0, le=1, description="The ratio of an answer is clipped below at 1 - clip_low.")
    clip_high: float = Field(4e-4, ge=0, description="The ratio of an answer is clipped above at 1 + clip_high.")
    reduction: Reduction = Field("row_mean", description="How tokens become one loss, and what its denominator is.")


class GSPO(GroupRelative):
    """PPO's clipped loss on the ratio of whole answers."""

    config: GSPOConfig

    def surrogate(self, tokens: Tokens, ratio: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """``loss_i`` at the head of this module, at each token of answer i."""
        of_answer = sequence_ratio(tokens, tokens[OLD_LOGPROBS.name])
        value, metrics = clipped_surrogate(self.config, of_answer, tokens[ADVANTAGES.name])
        return value, {**metrics, "sequence_ratio": of_answer.detach()}

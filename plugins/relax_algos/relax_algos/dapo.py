"""Decoupled clip and dynamic sampling policy optimization (Yu et al. 2025, arXiv 2503.14476): :mod:`relax_algos.grpo`
with four changes.

    clip higher          1 - 0.2 … 1 + 0.28: rare tokens may gain more than they lose
    dynamic sampling     groups whose answers are all right or all wrong have no gradient and leave the loss
    token-level loss     mean over groups of Σ_i,t loss_t / Σ_i T_i, T_i the tokens of answer i (equation 8)
    overlong             answers that were cut off leave the loss (``mask_truncated``), or long ones lose reward before
                         they are cut off (``overlong_length``, equation 13); the paper's final runs do the latter

No KL. ``drop_equal_groups`` removes a group without replacing it; with ``rollout.drop_equal_rewards`` other tasks are
sampled in its place, as in the paper.
"""

from pydantic import Field

from relax_algos.grpo import GRPOConfig
from relax_core.objectives.reduction import Reduction


class DAPOConfig(GRPOConfig):
    """Settings of GRPO with the defaults of DAPO."""

    clip_high: float = Field(0.28, ge=0, description="The ratio is clipped above at 1 + clip_high.")
    reduction: Reduction = Field(
        "group_token_mean", description="How tokens become one loss, and what its denominator is."
    )
    drop_equal_groups: bool = Field(True, description="Groups whose rewards are all equal leave the loss.")
    mask_truncated: bool = Field(True, description="Rows that ended by length leave the loss.")

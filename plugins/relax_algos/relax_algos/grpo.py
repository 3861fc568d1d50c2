"""Group Relative Policy Optimization and its relatives that differ by settings alone.

GRPO (Shao et al. 2024, arXiv 2402.03300) takes PPO's clipped loss and lets the other answers to the same task be the
baseline instead of a critic. These presets reproduce what papers describe; what a column leaves out is the default:

    setting             default      GRPO paper   Dr. GRPO, 2503.20783   DAPO, 2503.14476
    normalize_by_std    true         true         false                  true
    reduction           token_mean   row_mean     row_sum_constant       group_token_mean
    constant_length                               max_new_tokens
    clip_high           0.2                                              0.28
    kl_coefficient      0            0.04                                0
    drop_equal_groups   false                                            true
    mask_truncated      false                                            true

The default ``token_mean`` is what most implementations of DAPO compute ("bnpo" in TRL, "token-mean" in verl): a mean
over all tokens of the update, where the paper's formula takes it per group. DAPO also samples until enough groups have
signal; ``drop_equal_groups`` removes groups without signal from the loss, but does not sample others in their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import Field

from relax_algos.group_relative import GroupRelative, GroupRelativeConfig
from relax_core.objectives.clipping import clipped_policy_loss

if TYPE_CHECKING:
    from torch import Tensor


class GRPOConfig(GroupRelativeConfig):
    """Settings of GRPO; the table at the head of this module names presets."""

    clip_low: float = Field(0.2, ge=0, le=1, description="The ratio is clipped below at 1 - clip_low.")
    clip_high: float = Field(0.2, ge=0, description="The ratio is clipped above at 1 + clip_high; DAPO: 0.28.")
    dual_clip: float | None = Field(
        None, gt=1, description="With a negative advantage the loss is at most this times its magnitude; usually 3."
    )


class GRPO(GroupRelative):
    """PPO's clipped loss with group-relative advantages."""

    config: GRPOConfig

    def surrogate(self, ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """``-min(ratio · A, clip(ratio, 1 - clip_low, 1 + clip_high) · A)``, bounded by ``dual_clip`` where A < 0."""
        config = self.config
        clipped = clipped_policy_loss(ratio, advantages, config.clip_low, config.clip_high, config.dual_clip)
        cuts = {
            "clip_fraction": clipped.low | clipped.high | clipped.dual,
            "clip_fraction_low": clipped.low,
            "clip_fraction_high": clipped.high,
        }
        if config.dual_clip is not None:
            cuts["clip_fraction_dual"] = clipped.dual
        return clipped.value, {name: cut.to(ratio.dtype) for name, cut in cuts.items()}

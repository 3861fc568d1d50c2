"""Group Relative Policy Optimization (Shao et al. 2024, arXiv 2402.03300).

PPO's clipped loss, with the other answers to the same task as the baseline instead of a critic:

    A_i    = (r_i - mean(r)) / (std(r) + 1e-6)           over the n answers of a group, std with n - 1
    r_t    = p_current(token t) / p_old(token t)
    loss_t = -min(r_t · A_i, clip(r_t, 1 - clip_low, 1 + clip_high) · A_i)

The paper's form has ``reduction: row_mean`` and ``kl_coefficient: 0.04``. The defaults, ``token_mean`` and no
reference, are what most implementations have come to ("bnpo" in TRL, "token-mean" in verl). ``dr_grpo`` and ``dapo``
are this algorithm with other defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from relax_algos.group_relative import GroupRelative, GroupRelativeConfig
from relax_algos.terms.clipping import ClipSettings, clipped_surrogate
from relax_core.api.algorithm import ADVANTAGES

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.api.tokens import Tokens


class GRPOConfig(ClipSettings, GroupRelativeConfig):
    """Settings of GRPO."""


class GRPO(GroupRelative):
    """PPO's clipped loss with group-relative advantages."""

    config: GRPOConfig

    def surrogate(self, tokens: Tokens, ratio: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """``loss_t`` at the head of this module; bounded by ``dual_clip``, if set, where A < 0."""
        return clipped_surrogate(self.config, ratio, tokens[ADVANTAGES.name])

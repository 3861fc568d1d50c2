"""REINFORCE++ with baseline (Hu et al. 2025, arXiv 2501.03262, section 3): the group's mean, the batch's deviation.

    B_i    = r_i - mean(r)                                          over the answers of a group
    A_i    = (B_i - mean(B)) / sqrt(var(B) + 1e-8)                   over the batch, each B_i counted once per token
    loss_t = -min(r_t · A_i, clip(r_t, 1 - clip_low, 1 + clip_high) · A_i) + kl_coefficient · k2_t

One normalisation, over the batch, where GRPO divides by the deviation of a group: a group of nearly equal rewards does
not weigh as much as one that tells right from wrong. The KL is a term of the loss, by k2, whose gradient is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy.typing as npt
from pydantic import Field

from relax_algos.policy_gradient import PolicyGradient, PolicyGradientConfig
from relax_algos.terms.clipping import ClipSettings, clipped_surrogate
from relax_core.api.algorithm import ADVANTAGES, Requirements, Trajectories
from relax_core.dataflow.columns import LOSS_MASK
from relax_core.dataflow.rows import trainable_counts
from relax_core.objectives.advantages import group_relative_advantages
from relax_core.objectives.kl import KLEstimator
from relax_core.objectives.whitening import whiten

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.api.tokens import Tokens


class ReinforcePlusPlusBaselineConfig(ClipSettings, PolicyGradientConfig):
    """Settings of REINFORCE++ with baseline."""

    kl_in: Literal["loss"] = Field("loss", description="The KL is a term of the loss.")
    kl_estimator: KLEstimator = Field("k2", description="How the KL of a token is estimated.")

    def requirements(self) -> Requirements:
        """Advantages are made when the batch is closed, weighed by trainable tokens."""
        asked = super().requirements()
        return replace(asked, prepare_reads=asked.prepare_reads | {LOSS_MASK.name}, scope="batch", min_group_size=2)


class ReinforcePlusPlusBaseline(PolicyGradient):
    """PPO's clipped loss with advantages relative to the group and normalised over the batch."""

    config: ReinforcePlusPlusBaselineConfig

    def advantages(self, trajectories: Trajectories) -> npt.ArrayLike:
        """``A_i`` at the head of this module."""
        centred = group_relative_advantages(trajectories.rewards, trajectories.groups, normalize_by_std=False)
        return whiten(centred, trainable_counts(trajectories.table[LOSS_MASK.name]))

    def surrogate(self, tokens: Tokens, ratio: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """``loss_t`` at the head of this module, without its KL."""
        return clipped_surrogate(self.config, ratio, tokens[ADVANTAGES.name])

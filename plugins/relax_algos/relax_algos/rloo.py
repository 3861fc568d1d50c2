"""REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv 2402.14740; Kool et al. 2019).

An answer is one action, and its baseline is the mean reward of the other answers in its group:

    A_i    = r_i - mean of the other r              r_i less kl_coefficient · Σ_t (log p_old - log p_reference), if set
    ρ_i    = exp(Σ_t log p_current - log p_old)      exponent bounded to ±20
    loss_i = -min(ρ_i · A_i, clip(ρ_i, 1 - clip_low, 1 + clip_high) · A_i)
    loss   = mean over answers of loss_i

The paper has no ratio. With one update per batch it is 1, and the gradient is the paper's, ``-A_i · ∇log p(answer i)``;
further updates are held by PPO's clip, as in TRL. What an answer as one action cannot honour is refused: weights of
single tokens, means over tokens, a KL of single tokens in the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy.typing as npt
from pydantic import Field

from relax_algos.policy_gradient import PolicyGradient, PolicyGradientConfig
from relax_algos.terms.clipping import ClipSettings, clipped_surrogate
from relax_algos.terms.kl import penalised_rewards
from relax_core.api.algorithm import ADVANTAGES, Requirements, Trajectories
from relax_core.dataflow.columns import OLD_LOGPROBS
from relax_core.objectives.advantages import leave_one_out_advantages
from relax_core.objectives.ratios import answer_ratio

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.api.tokens import Tokens


class RLOOConfig(ClipSettings, PolicyGradientConfig):
    """Settings of RLOO."""

    kl_in: Literal["reward"] = Field("reward", description="The KL is taken off the reward of an answer.")
    kl_estimator: Literal["k1"] | None = Field(None, description="Only with a KL coefficient: `k1`.")
    reduction: Literal["row_mean"] = Field("row_mean", description="The loss is a mean over answers.")
    correction: Literal["none", "sequence_tis", "sequence_mask"] = Field(
        "none", description="For the gap from rollout to old policy: an importance weight of the whole answer."
    )

    def requirements(self) -> Requirements:
        """A group of one has no baseline."""
        return replace(super().requirements(), min_group_size=2)


class RLOO(PolicyGradient):
    """PPO's clipped loss on answers, with a leave-one-out baseline."""

    config: RLOOConfig

    def advantages(self, trajectories: Trajectories) -> npt.ArrayLike:
        """``A_i`` at the head of this module."""
        return leave_one_out_advantages(penalised_rewards(self.config, trajectories), trajectories.groups)

    def surrogate(self, tokens: Tokens, ratio: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """``loss_i`` at the head of this module, at each token of answer i: their mean is ``loss_i``."""
        of_answer = answer_ratio(tokens, tokens[OLD_LOGPROBS.name])
        value, metrics = clipped_surrogate(self.config, of_answer, tokens.row(ADVANTAGES.name))
        return tokens.spread(value), {**metrics, "sequence_ratio": of_answer.detach()}

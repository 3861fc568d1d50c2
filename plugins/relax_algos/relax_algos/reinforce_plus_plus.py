"""REINFORCE++ (Hu et al. 2025, arXiv 2501.03262): PPO's loss without a critic, normalised over the whole batch.

    R_t    = [t is the last token] · r_i - kl_coefficient · (log p_old - log p_reference)       of each trainable token
    G_t    = R_t + discount · G_{t+1}                                                            rest of the answer
    A_t    = (G_t - mean(G)) / sqrt(var(G) + 1e-8)                                               all tokens of the batch
    loss_t = -min(r_t · A_t, clip(r_t, 1 - clip_low, 1 + clip_high) · A_t)

Groups play no part: one answer per task is enough. The KL belongs to the return, so it is always k1 in the reward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from relax_algos.policy_gradient import PolicyGradient, PolicyGradientConfig
from relax_algos.terms.clipping import ClipSettings, clipped_surrogate
from relax_algos.terms.kl import token_penalties
from relax_core.api.algorithm import ADVANTAGES, Requirements, Trajectories
from relax_core.api.columns import Column
from relax_core.dataflow.columns import LOSS_MASK, TOKENS
from relax_core.objectives.returns import returns_to_go
from relax_core.objectives.whitening import whiten

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.api.tokens import Tokens

TOKEN_ADVANTAGES = replace(ADVANTAGES, level="token")


class ReinforcePlusPlusConfig(ClipSettings, PolicyGradientConfig):
    """Settings of REINFORCE++."""

    kl_in: Literal["reward"] = Field("reward", description="The KL of a token is taken off the reward there.")
    kl_estimator: Literal["k1"] | None = Field(None, description="Only with a KL coefficient: `k1`.")
    discount: float = Field(1.0, ge=0, le=1, description="Discount of the return, per trainable token.")

    def requirements(self) -> Requirements:
        """An advantage for every token, made when the batch is closed."""
        asked = super().requirements()
        return replace(
            asked,
            prepare_reads=asked.prepare_reads | {TOKENS.name, LOSS_MASK.name},
            produces=tuple(TOKEN_ADVANTAGES if spec == ADVANTAGES else spec for spec in asked.produces),
            scope="batch",
        )


class ReinforcePlusPlus(PolicyGradient):
    """PPO's clipped loss with whitened returns."""

    config: ReinforcePlusPlusConfig

    def advantages(self, trajectories: Trajectories) -> Column:
        """``A_t`` at the head of this module: one entry per token of each row, 0 where it is not trained."""
        mask = trajectories.table[LOSS_MASK.name]
        assert mask.offsets is not None
        returns = np.zeros(len(mask.values))
        if self.config.kl_coefficient:
            returns -= token_penalties(self.config, trajectories.table)
        for reward, start, stop in zip(trajectories.rewards, mask.offsets[:-1], mask.offsets[1:], strict=True):
            trained = start + np.flatnonzero(mask.values[start:stop])
            if len(trained):
                returns[trained[-1]] += reward
                returns[trained] = returns_to_go(returns[trained], self.config.discount)
        whitened = whiten(returns, mask.values.astype(np.int64))
        return Column(TOKEN_ADVANTAGES, whitened.astype(TOKEN_ADVANTAGES.dtype), mask.offsets)

    def surrogate(self, tokens: Tokens, ratio: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """``loss_t`` at the head of this module."""
        return clipped_surrogate(self.config, ratio, tokens[ADVANTAGES.name])

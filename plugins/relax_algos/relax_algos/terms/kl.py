"""Kullback-Leibler divergence to a frozen reference: as a term of the loss, or taken off the reward.

In the loss it is KL(current, reference) of each token, with gradient, by one of the estimators of
:mod:`relax_core.objectives.kl`. In the reward it is ``kl_coefficient · Σ (log p_old - log p_reference)`` over the
trainable tokens of an answer, before advantages are made. ``old`` is the trainer's own policy at the start of the
batch and not the engine's, so that a policy which is still its reference pays nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from relax_algos.terms.checks import refuse_ignored
from relax_core.api.algorithm import Requirements, Trajectories
from relax_core.config import AlgorithmConfig
from relax_core.dataflow.columns import LOSS_MASK, OLD_LOGPROBS, REF_LOGPROBS
from relax_core.objectives.kl import KLEstimator, k3, kl_loss, kl_penalty

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.api.columns import Table
    from relax_core.api.tokens import Tokens


class KLSettings(AlgorithmConfig):
    """Where the divergence is counted, how it is estimated, and how much it weighs."""

    kl_coefficient: float = Field(0.0, ge=0, description="Weight of the KL to the reference; 0 loads no reference.")
    kl_in: Literal["loss", "reward"] = Field("loss", description="A term of the loss, or taken off the reward.")
    kl_estimator: Literal["k1"] | KLEstimator | None = Field(
        None, description="Only with a KL coefficient. In the loss `k3` when absent, in the reward always `k1`."
    )

    @model_validator(mode="after")
    def _check_kl(self) -> KLSettings:
        if self.kl_in == "loss" and self.kl_estimator == "k1":
            raise ValueError("k1 has zero expected gradient as a loss; use k2, k3 or weighted_k3, or kl_in: reward")
        if self.kl_in == "reward" and self.kl_coefficient and self.kl_estimator not in (None, "k1"):
            raise ValueError(
                f"{self.kl_estimator} in the reward has zero expected gradient where the policy is near its reference; "
                f"use k1, or kl_in: loss"
            )
        used = (self.kl_coefficient > 0, "a kl_coefficient above 0")
        refuse_ignored(self, {"kl_estimator": used, "kl_in": used})
        return self

    def requirements(self) -> Requirements:
        """The reference, with a coefficient; in the reward it is read before training, together with ``old``."""
        asked = super().requirements()
        if not self.kl_coefficient:
            return asked
        asked = replace(asked, needs=asked.needs | {REF_LOGPROBS.name})
        if self.kl_in == "loss":
            return asked
        read = {REF_LOGPROBS.name, OLD_LOGPROBS.name}
        return replace(asked, needs=asked.needs | read, prepare_reads=asked.prepare_reads | read | {LOSS_MASK.name})


def kl_term(settings: KLSettings, tokens: Tokens, ratio: Tensor) -> tuple[Tensor | float, dict[str, Tensor]]:
    """``[N]`` term of the loss, 0 where it has none, and metrics. ``ratio``: current over old policy."""
    if not settings.kl_coefficient:
        return 0.0, {}
    log_ratio = tokens.logprobs - tokens[REF_LOGPROBS.name]
    if settings.kl_in == "reward":
        return 0.0, {"kl_ref": k3(log_ratio.detach())}
    estimator = settings.kl_estimator or "k3"
    assert estimator != "k1"
    kl = kl_loss(estimator, log_ratio, ratio)
    return settings.kl_coefficient * kl, {"kl_ref": kl.detach()}


def token_penalties(settings: KLSettings, table: Table) -> npt.NDArray[np.float64]:
    """What is taken off the reward at each token of all rows, end to end: 0 at those that are not trained."""
    kl = kl_penalty(_floats(table, OLD_LOGPROBS.name), _floats(table, REF_LOGPROBS.name))
    return np.where(table[LOSS_MASK.name].values, settings.kl_coefficient * kl, 0.0)


def penalised_rewards(settings: KLSettings, trajectories: Trajectories) -> npt.NDArray[np.float64]:
    """``[n]`` rewards, less the penalties of each trajectory's tokens where the KL is in the reward."""
    if not settings.kl_coefficient or settings.kl_in == "loss":
        return trajectories.rewards
    table = trajectories.table
    rewards = trajectories.rewards.copy()
    row = np.repeat(np.arange(len(rewards)), table[LOSS_MASK.name].lengths)
    np.subtract.at(rewards, row, token_penalties(settings, table))
    return rewards


def _floats(table: Table, name: str) -> npt.NDArray[np.float64]:
    return table[name].values.astype(np.float64)

"""Second-Moment Trust Policy Optimization (Zheng et al. 2025, arXiv 2510.01161), for rows that are many updates old.

The ratio is that of the current policy and of the one that *sampled*, however long ago, and instead of a fixed clip a
budget for the second moment of its logarithm decides which tokens are left out:

    l_t    = log p_current - log p_rollout
    H      = tokens with A > 0 and l > 0, or A < 0 and l < 0: their advantage pushes them further away
    M      = all tokens but those of H with |l| > bound:  the largest bound for which mean over H ∩ M of l² <= budget
    loss_t = -M_t · exp(l_t) · A_i                                              A_i as in GRPO, exponent bounded to ±20
    loss   = mean over groups of Σ_i,t loss_t / Σ_i T_i                          T_i the tokens of answer i

The bound is found over the whole batch, with the policy at its start, and kept for all updates of the batch. It is at
least ``sqrt(budget)``: no such token can exceed the budget, and later updates keep a trust region where the first has
none to set. With one update per batch it leaves out what the paper's loop does, which drops the farthest token until
the rest fits; the budget of 0.04 is that of AReaL's recipe, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from relax_algos.group_relative import GroupRelative, GroupRelativeConfig
from relax_core.api.algorithm import ADVANTAGES, Requirements, Trajectories
from relax_core.api.columns import Column, ColumnSpec
from relax_core.dataflow.columns import LOSS_MASK, OLD_LOGPROBS, ROLLOUT_LOGPROBS
from relax_core.objectives.ratios import importance_ratio
from relax_core.objectives.reduction import Reduction
from relax_core.objectives.second_moment import second_moment_bound

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.api.tokens import Tokens

LOG_RATIO_BOUND = ColumnSpec("log_ratio_bound", "float32", "row")
"""Largest |log p_current - log p_rollout| of a token that the trust region may hold; the same in the whole batch."""


class M2POConfig(GroupRelativeConfig):
    """Settings of M2PO."""

    second_moment_budget: float = Field(0.04, gt=0, description="Largest mean of the squared log-ratio, in nats².")
    correction: Literal["none"] = Field("none", description="None: the ratio already is current / rollout.")
    rejection: Literal["none"] = Field("none", description="None: the budget already rejects what is too far.")
    reduction: Reduction = Field(
        "group_token_mean", description="How tokens become one loss, and what its denominator is."
    )

    def requirements(self) -> Requirements:
        """Both policies before training, for a bound over the closed batch."""
        asked = super().requirements()
        read = {OLD_LOGPROBS.name, ROLLOUT_LOGPROBS.name}
        return replace(
            asked,
            needs=asked.needs | read,
            prepare_reads=asked.prepare_reads | read | {LOSS_MASK.name},
            produces=(*asked.produces, LOG_RATIO_BOUND),
            scope="batch",
            correction=f"in the ratio, current / rollout; second moment at most {self.second_moment_budget}",
        )


class M2PO(GroupRelative):
    """An importance-weighted policy gradient without the tokens that exceed the budget."""

    config: M2POConfig

    def prepare(self, trajectories: Trajectories) -> Mapping[str, npt.ArrayLike | Column]:
        """Advantages, and the bound at the head of this module."""
        columns = super().prepare(trajectories)
        table = trajectories.table
        trained = table[LOSS_MASK.name].values.astype(bool)
        advantages = np.repeat(np.asarray(columns[ADVANTAGES.name]), table[LOSS_MASK.name].lengths)
        old, rollout = (table[spec.name].values.astype(np.float64) for spec in (OLD_LOGPROBS, ROLLOUT_LOGPROBS))
        bound = second_moment_bound((old - rollout)[trained], advantages[trained], self.config.second_moment_budget)
        return {**columns, LOG_RATIO_BOUND.name: np.full(len(trajectories), bound)}

    def surrogate(self, tokens: Tokens, ratio: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """``loss_t`` at the head of this module."""
        advantages, bound = tokens[ADVANTAGES.name], tokens[LOG_RATIO_BOUND.name]
        log_ratio = tokens.logprobs - tokens[ROLLOUT_LOGPROBS.name]
        beyond = (log_ratio.detach() * advantages.sign()) > bound
        value = -importance_ratio(log_ratio) * advantages * ~beyond
        return value, {"clip_fraction": beyond.to(value.dtype), "log_ratio_bound": bound}

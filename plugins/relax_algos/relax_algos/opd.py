"""On-policy distillation: a policy becomes its teacher on the answers that it writes itself.

For tokens that the policy draws, ``log p_old - log p_teacher`` estimates the reverse divergence KL(policy, teacher) at
that place. Its negative is the token's advantage, in the clipped loss of GRPO (Lu 2025,
https://thinkingmachines.ai/blog/on-policy-distillation; GKD with student data, Agarwal et al. 2023, arXiv 2306.13649):

    A_t    = teacher_coefficient · (log p_teacher(token t) - log p_old(token t)) + reward_coefficient · A_task
    r_t    = p_current(token t) / p_old(token t)
    loss_t = -min(r_t · A_t, clip(r_t, 1 - clip_low, 1 + clip_high) · A_t)

At ratio 1 the expected gradient is that of KL(policy, teacher) at each token, given the tokens before it; what a token
does to later ones is not counted. A_t is a constant: the sampled log-ratio as a loss of its own, differentiated, has
zero expected gradient. The difference of logarithms is cut at ±20 nats, as the exponents of ratios are, so that a token
which one of the two excludes leaves the loss finite. ``A_task`` is GRPO's advantage of the rewards; with
``reward_coefficient: 0`` there is none: a run needs no reward then, and groups may have one answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy.typing as npt
from pydantic import Field, model_validator

from relax_algos.grpo import GRPO, GRPOConfig
from relax_algos.terms.checks import refuse_ignored
from relax_core.api.algorithm import ADVANTAGES, Loss, Requirements, Trajectories
from relax_core.api.columns import Column
from relax_core.dataflow.columns import OLD_LOGPROBS, TEACHER_LOGPROBS
from relax_core.objectives.ratios import MAX_EXPONENT

if TYPE_CHECKING:
    from relax_core.api.tokens import Tokens

READ_REWARDS = ("normalize_by_std", "drop_equal_groups", "overlong_length", "kl_in")
"""Settings that are of no use without a reward."""


class OPDConfig(GRPOConfig):
    """Settings of on-policy distillation."""

    teacher_coefficient: float = Field(1.0, gt=0, description="Weight of the teacher in the advantage of a token.")
    reward_coefficient: float = Field(
        0.0, ge=0, description="Weight of the rewards' advantage; 0: rewards are not needed, and measured if there."
    )

    @model_validator(mode="after")
    def _refuse_what_reads_rewards(self) -> OPDConfig:
        used = (self.reward_coefficient > 0, "a reward_coefficient above 0")
        refuse_ignored(self, dict.fromkeys(READ_REWARDS, used))
        return self

    def requirements(self) -> Requirements:
        """The teacher; and rewards where they have a weight."""
        asked = super().requirements()
        asked = replace(asked, needs=asked.needs | {TEACHER_LOGPROBS.name})
        if self.reward_coefficient:
            return asked
        return replace(asked, produces=(), rewards=False, min_group_size=1)


class OPD(GRPO):
    """GRPO's loss with the teacher's advantages."""

    config: OPDConfig

    def prepare(self, trajectories: Trajectories) -> Mapping[str, npt.ArrayLike | Column]:
        """The advantages of the rewards, where they have a weight."""
        return super().prepare(trajectories) if self.config.reward_coefficient else {}

    def loss(self, tokens: Tokens) -> Loss:
        """``loss_t`` at the head of this module. Metric ``kl_teacher``: mean of ``log p_old - log p_teacher``."""
        config = self.config
        log_ratio = (tokens[OLD_LOGPROBS.name] - tokens[TEACHER_LOGPROBS.name]).clamp(-MAX_EXPONENT, MAX_EXPONENT)
        advantages = -config.teacher_coefficient * log_ratio
        if config.reward_coefficient:
            advantages = advantages + config.reward_coefficient * tokens[ADVANTAGES.name]
        loss = super().loss(tokens.with_column(ADVANTAGES.name, advantages))
        return replace(loss, metrics={**loss.metrics, "kl_teacher": log_ratio})

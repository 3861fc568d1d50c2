"""Direct Preference Optimization: a policy learns from pairs of answers which of the two is better.

DPO (Rafailov et al. 2023, arXiv 2305.18290, equation 7) reads the reward of an answer off the policy itself. With y the
trained tokens of an answer, c the chosen and r the rejected one of a pair:

    reward(y) = beta · (log p_current(y) - log p_reference(y))
    margin    = reward(c) - reward(r)
    sigmoid   loss of a pair = -(1 - label_smoothing) · log sigmoid(margin) - label_smoothing · log sigmoid(-margin)
    ipo       loss of a pair = (margin / beta - 1 / (2 · beta))²

``label_smoothing`` is the share of pairs that are the wrong way round (Mitchell 2023, conservative DPO,
https://ericmitchell.ai/cdpo.pdf). IPO is Azar et al. 2023, arXiv 2310.12036, equation 17. ``length_normalized`` takes
log p(y) as a mean over the tokens of y where the papers have the sum; TRL does so for IPO, and for that alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from relax_core.api.algorithm import Algorithm, Loss, Requirements
from relax_core.config import AlgorithmConfig
from relax_core.dataflow.columns import PREFERRED, REF_LOGPROBS

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.api.tokens import Tokens


class DPOConfig(AlgorithmConfig):
    """Settings of DPO."""

    beta: float = Field(0.1, gt=0, description="How strongly the policy is held to the reference; smaller moves more.")
    variant: Literal["sigmoid", "ipo"] = Field("sigmoid", description="Loss of a pair.")
    label_smoothing: float = Field(
        0.0, ge=0, lt=0.5, description="Only for `sigmoid`: share of pairs whose labels are the wrong way round."
    )
    length_normalized: bool = Field(
        False, description="The log-probability of an answer is the mean over its tokens, not their sum."
    )

    @model_validator(mode="after")
    def _refuse_ignored_settings(self) -> DPOConfig:
        if self.label_smoothing and self.variant != "sigmoid":
            raise ValueError(f"label_smoothing: {self.label_smoothing} would be ignored: it needs variant: sigmoid")
        return self

    def requirements(self) -> Requirements:
        """Whole pairs, and what the reference says of them; no rollout, no reward."""
        return Requirements(
            needs=frozenset({REF_LOGPROBS.name, PREFERRED.name}),
            produces=(),
            unit="group",
            keep_together="group",
            supervised=True,
        )


class DPO(Algorithm):
    """One loss per pair; both rows of a pair carry it, with half of its weight each."""

    config: DPOConfig

    def loss(self, tokens: Tokens) -> Loss:
        """The formula at the head of this module. Metrics: ``accuracy`` is the share of pairs with a margin above 0,
        ``margin``, ``chosen_reward`` and ``rejected_reward`` are means over pairs."""
        config = self.config
        log_ratio = tokens.logprobs - tokens[REF_LOGPROBS.name]
        per_row = tokens.row_mean(log_ratio) if config.length_normalized else tokens.row_sum(log_ratio)
        rewards, preferred = config.beta * per_row, tokens.row(PREFERRED.name)
        chosen = tokens.group_sum(rewards.where(preferred, rewards.new_zeros(())))
        rejected = tokens.group_sum(rewards.where(~preferred, rewards.new_zeros(())))
        margin = chosen - rejected
        metrics = {
            "accuracy": (margin > 0).to(margin.dtype),
            "margin": margin.detach(),
            "chosen_reward": chosen.detach(),
            "rejected_reward": rejected.detach(),
        }
        return Loss(self._of_pair(margin), 1 / tokens.group_rows, "group", metrics)

    def _of_pair(self, margin: Tensor) -> Tensor:
        config = self.config
        if config.variant == "ipo":
            return (margin / config.beta - 1 / (2 * config.beta)).square()
        wrong = config.label_smoothing
        # -log sigmoid(x) = softplus(-x) = log(exp(0) + exp(-x)), which is finite for every finite x.
        return (1 - wrong) * _softplus(-margin) + wrong * _softplus(margin)


def _softplus(values: Tensor) -> Tensor:
    return values.new_zeros(()).logaddexp(values)

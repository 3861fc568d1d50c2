"""Supervised fine-tuning: the negative log-likelihood of the dataset's labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from relax_core.api.algorithm import Algorithm, Loss, Requirements
from relax_core.config import AlgorithmConfig
from relax_core.objectives.reduction import UNITS, reduce

if TYPE_CHECKING:
    from relax_core.api.tokens import Tokens


class SFTConfig(AlgorithmConfig):
    """Settings of supervised fine-tuning."""

    reduction: Literal["token_mean", "row_mean"] = Field(
        "token_mean", description="Every token counts the same, or every row does."
    )

    def requirements(self) -> Requirements:
        """Labels and log-probabilities; no rollout, no reward."""
        return Requirements(produces=(), scope="row", unit=UNITS[self.reduction], supervised=True)


class SFT(Algorithm):
    """``loss = -log p(token)`` of every label token."""

    config: SFTConfig

    def loss(self, tokens: Tokens) -> Loss:
        """The loss is its own metric: its exponential is the perplexity."""
        return reduce(-tokens.logprobs, tokens, self.config.reduction)

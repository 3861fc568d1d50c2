"""Entropy of the policy: a bonus, and a metric."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import Field

from relax_core.api.algorithm import Requirements
from relax_core.config import AlgorithmConfig

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.api.tokens import Tokens


class EntropySettings(AlgorithmConfig):
    """``- entropy_coefficient · entropy``, in nats, of the distribution each token was drawn from, with gradient."""

    entropy_coefficient: float = Field(0.0, description="Weight of the entropy bonus; negative lowers the entropy.")
    log_entropy: bool = Field(True, description="Log the mean entropy.")

    def requirements(self) -> Requirements:
        """The entropy, where something reads it."""
        asked = super().requirements()
        is_read = bool(self.entropy_coefficient) or self.log_entropy
        return replace(asked, outputs=asked.outputs | {"entropy"}) if is_read else asked


def entropy_term(settings: EntropySettings, tokens: Tokens) -> tuple[Tensor | float, dict[str, Tensor]]:
    """``[N]`` term of the loss, 0 without a coefficient, and metrics."""
    metrics = {"entropy": tokens.entropy.detach()} if settings.log_entropy else {}
    if not settings.entropy_coefficient:
        return 0.0, metrics
    return -settings.entropy_coefficient * tokens.entropy, metrics

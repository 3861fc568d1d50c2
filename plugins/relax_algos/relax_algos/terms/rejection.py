"""Rows that the trainer sees too differently from the engine that sampled them are rejected.

A rejected row leaves numerator and denominator, as if it had not been sampled; its KL and its entropy too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from relax_algos.terms.bounds import Bounds
from relax_algos.terms.checks import refuse_ignored
from relax_core.api.algorithm import Requirements
from relax_core.config import AlgorithmConfig
from relax_core.dataflow.columns import OLD_LOGPROBS, ROLLOUT_LOGPROBS
from relax_core.objectives.rejection import divergence_rejection, geometric_rejection

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.api.tokens import Tokens

RejectionName = Literal["none", "geometric", "k3"]

BOUNDS = {"none": Bounds(), "geometric": Bounds(0.99, 1.01), "k3": Bounds(None, 0.01)}
"""Smallest and largest value that is not rejected where the configuration gives none."""


class RejectionSettings(AlgorithmConfig):
    """Rejection by the distance of old and rollout policy over a row."""

    rejection: RejectionName = Field(
        "none",
        description="Rows leave the loss by old / rollout: by its geometric mean over their tokens, or by the mean "
        "K3 divergence.",
    )
    rejection_min: float | None = Field(
        None, ge=0, description="Only for `geometric`: smallest mean that stays; 0.99 when absent."
    )
    rejection_max: float | None = Field(
        None, gt=0, description="Largest value that stays: 1.01 for `geometric`, 0.01 nats per token for `k3`."
    )

    @model_validator(mode="after")
    def _check_rejection(self) -> RejectionSettings:
        used = {
            "rejection_min": (BOUNDS[self.rejection].low is not None, "rejection: geometric"),
            "rejection_max": (self.rejection != "none", "a rejection"),
        }
        refuse_ignored(self, used)
        self.rejection_bounds.check("rejection")
        return self

    @property
    def rejection_bounds(self) -> Bounds:
        """Smallest and largest value that is not rejected."""
        return BOUNDS[self.rejection].with_settings(self.rejection_min, self.rejection_max)

    def requirements(self) -> Requirements:
        """What the engine computed, with a rejection."""
        asked = super().requirements()
        if self.rejection == "none":
            return asked
        words = [] if asked.correction == "none" else [asked.correction]
        words.append(f"{self.rejection} rejection {self.rejection_bounds}")
        return replace(asked, needs=asked.needs | {ROLLOUT_LOGPROBS.name}, correction=", ".join(words))


def rejection_mask(settings: RejectionSettings, tokens: Tokens) -> tuple[Tensor | None, dict[str, Tensor]]:
    """``[N]`` 0 for the tokens of rejected rows and 1 for others, ``None`` without a rejection; and metrics."""
    if settings.rejection == "none":
        return None, {}
    log_ratio, bounds = tokens[OLD_LOGPROBS.name] - tokens[ROLLOUT_LOGPROBS.name], settings.rejection_bounds
    assert bounds.high is not None
    if bounds.low is None:
        made = divergence_rejection(tokens, log_ratio, bounds.high)
    else:
        made = geometric_rejection(tokens, log_ratio, bounds.low, bounds.high)
    rejected = made.rejected.to(log_ratio.dtype)
    return tokens.spread(1 - rejected), {"rejected": rejected, "rejection_distance": made.distance}

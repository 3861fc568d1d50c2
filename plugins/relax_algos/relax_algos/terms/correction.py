"""Importance weights for the gap from rollout to old policy, of tokens or of whole rows.

A weight multiplies the surrogate, not the KL or the entropy, and leaves the denominator as it is.
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
from relax_core.objectives.corrections import masked_importance_weights, truncated_importance_weights

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.api.tokens import Tokens

CorrectionName = Literal["none", "tis", "icepop", "sequence_tis", "sequence_mask"]

BOUNDS = {
    "none": Bounds(),
    "tis": Bounds(None, 2.0),
    "icepop": Bounds(0.5, 5.0),
    "sequence_tis": Bounds(None, 2.0),
    "sequence_mask": Bounds(0.0, 3.0),
}
"""Smallest and largest weight of each correction where the configuration gives none."""

WORDS = {"tis": "TIS", "icepop": "IcePop", "sequence_tis": "sequence TIS", "sequence_mask": "sequence mask"}
BY_ROW = ("sequence_tis", "sequence_mask")


class CorrectionSettings(AlgorithmConfig):
    """Importance weights ``old / rollout``."""

    correction: CorrectionName = Field(
        "none",
        description="For the gap from rollout to old policy: importance weights of tokens, truncated (`tis`) or masked "
        "(`icepop`), or of whole rows (`sequence_tis`, `sequence_mask`).",
    )
    correction_min: float | None = Field(
        None,
        ge=0,
        description="Only for `icepop` and `sequence_mask`: smaller weights become 0; 0.5 and 0 when absent.",
    )
    correction_max: float | None = Field(
        None,
        gt=0,
        description="Largest weight: `tis` and `sequence_tis` cut it there (2.0 when absent), `icepop` (5.0) and "
        "`sequence_mask` (3.0) drop beyond it.",
    )

    @model_validator(mode="after")
    def _check_correction(self) -> CorrectionSettings:
        used = {
            "correction_min": (BOUNDS[self.correction].low is not None, "correction: icepop or sequence_mask"),
            "correction_max": (self.correction != "none", "a correction"),
        }
        refuse_ignored(self, used)
        self.correction_bounds.check("correction")
        return self

    @property
    def correction_bounds(self) -> Bounds:
        """Smallest and largest weight of the correction."""
        return BOUNDS[self.correction].with_settings(self.correction_min, self.correction_max)

    def requirements(self) -> Requirements:
        """What the engine computed, with a correction."""
        asked = super().requirements()
        if self.correction == "none":
            return asked
        words = f"{WORDS[self.correction]} {self.correction_bounds}"
        return replace(asked, needs=asked.needs | {ROLLOUT_LOGPROBS.name}, correction=words)


def correction_weights(settings: CorrectionSettings, tokens: Tokens) -> tuple[Tensor | float, dict[str, Tensor]]:
    """``[N]`` weights of the surrogate, 1 without a correction, and metrics."""
    if settings.correction == "none":
        return 1.0, {}
    by_row, bounds = settings.correction in BY_ROW, settings.correction_bounds
    log_ratio = tokens[OLD_LOGPROBS.name] - tokens[ROLLOUT_LOGPROBS.name]
    log_ratio = tokens.row_sum(log_ratio) if by_row else log_ratio
    assert bounds.high is not None
    if bounds.low is None:
        made = truncated_importance_weights(log_ratio, bounds.high)
    else:
        made = masked_importance_weights(log_ratio, bounds.low, bounds.high)
    metrics = {"correction_weight": made.weights, "correction_clipped": made.clipped.to(made.weights.dtype)}
    return (tokens.spread(made.weights) if by_row else made.weights), metrics

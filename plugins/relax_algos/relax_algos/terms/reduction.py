"""How tokens become one loss; see :mod:`relax_core.objectives.reduction` for the formulas."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from relax_algos.terms.checks import refuse_ignored
from relax_core.api.algorithm import Loss, Requirements
from relax_core.config import AlgorithmConfig
from relax_core.objectives.reduction import UNITS, Reduction, reduce

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.api.tokens import Tokens


class ReductionSettings(AlgorithmConfig):
    """What the loss is a mean over."""

    reduction: Reduction = Field("token_mean", description="How tokens become one loss, and what its denominator is.")
    constant_length: float | None = Field(
        None, gt=0, description="Only for, and required by, `row_sum_constant`: the length that sums are divided by."
    )

    @model_validator(mode="after")
    def _check_constant_length(self) -> ReductionSettings:
        by_constant = self.reduction == "row_sum_constant"
        if by_constant and self.constant_length is None:
            raise ValueError("reduction row_sum_constant needs constant_length, for example sampling.max_new_tokens")
        refuse_ignored(self, {"constant_length": (by_constant, "reduction: row_sum_constant")})
        return self

    def requirements(self) -> Requirements:
        """The unit of the denominator."""
        return replace(super().requirements(), unit=UNITS[self.reduction])


def reduced(settings: ReductionSettings, value: Tensor, tokens: Tokens, mask: Tensor | None) -> Loss:
    """The loss of ``[N]`` values over the tokens that ``mask`` leaves; ``None`` leaves all."""
    constant = settings.constant_length if settings.reduction == "row_sum_constant" else None
    return reduce(value, tokens, settings.reduction, mask, constant)

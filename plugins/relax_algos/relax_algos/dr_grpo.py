"""GRPO done right (Liu et al. 2025, arXiv 2503.20783): :mod:`relax_algos.grpo` without its two biases.

    A_i  = r_i - mean(r)                                              no division by the standard deviation, which
                                                                      weighs easy and hard tasks more than others
    loss = mean over answers of Σ_t loss_t / constant_length          no division by the answer's own length, which
                                                                      spares long wrong answers

The constant only scales the loss, which Adam forgets and the clipping of gradients does not. The paper's code divides
by the longest answer that sampling allows, so does TRL; the default here is that of ``sampling.max_new_tokens``.
"""

from pydantic import Field

from relax_algos.grpo import GRPOConfig
from relax_core.objectives.reduction import Reduction


class DrGRPOConfig(GRPOConfig):
    """Settings of GRPO with the defaults of Dr. GRPO."""

    normalize_by_std: bool = Field(False, description="Divide advantages by the group's standard deviation.")
    reduction: Reduction = Field(
        "row_sum_constant", description="How tokens become one loss, and what its denominator is."
    )
    constant_length: float | None = Field(
        512.0, gt=0, description="For `row_sum_constant`: the length that sums are divided by."
    )

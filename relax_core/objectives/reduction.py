"""From one number per token to a loss with one denominator, right however the rows are split over micro-batches.

The result of an update is ``Σ value · weight / Σ weight`` over all its micro-batches. With v a token's value, m its
place in the mask (1 for all without one), T_i = Σ_t m of row i, and T_g that of its whole group:

    token_mean         Σ m v / Σ m                               every token counts the same
    row_mean           mean over rows of Σ_t m v / T_i           GRPO, arXiv 2402.03300, equation 3
    row_sum_constant   mean over rows of Σ_t m v / constant      Dr. GRPO, arXiv 2503.20783: no bias by length
    group_token_mean   mean over groups of Σ_i,t m v / T_g       DAPO, arXiv 2503.14476, equation 8

A mask acts on numerator and denominator alike: what it excludes leaves no trace. A token with m = 0 is in neither sum,
a row without a token left is not counted as a row. The one thing that a micro-batch cannot know is how many tokens a
mask left in the rest of a group; so under ``group_token_mean`` a group counts by the share of its tokens that is left
(1 without a mask, 0 when it is excluded as a whole). A mask hides no NaN: 0 · NaN is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from relax_core.api.algorithm import Loss, Unit

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.api.tokens import Tokens

Reduction = Literal["token_mean", "row_mean", "row_sum_constant", "group_token_mean"]

UNITS: Mapping[Reduction, Unit] = {
    "token_mean": "token",
    "row_mean": "row",
    "row_sum_constant": "row",
    "group_token_mean": "group",
}
"""The denominator of each reduction."""


def reduce(
    values: Tensor, tokens: Tokens, mode: Reduction, mask: Tensor | None = None, constant: float | None = None
) -> Loss:
    """Value, weight and unit of a loss; see the table at the head of this module.

    Args:
        values: ``[N]`` with gradient.
        tokens: The micro-batch that they belong to.
        mode: How they become one number.
        mask: ``[N]``, 0 or 1 each, without gradient; ``None`` keeps every token.
        constant: Length that ``row_sum_constant`` divides by; given exactly then.

    Raises:
        ValueError: ``constant`` is missing, or given to another mode.
    """
    if (constant is None) == (mode == "row_sum_constant"):
        raise ValueError(f"reduction {mode}: a constant length belongs to row_sum_constant, and only to it")
    mask = values.detach().new_ones(len(tokens)) if mask is None else mask.to(values.dtype)
    if mode == "token_mean":
        return Loss(values, mask, UNITS[mode])
    lengths = tokens.row_sum(mask)
    counted = (lengths > 0).to(values.dtype)
    sums = tokens.row_sum(values * mask)
    if constant is not None:
        return Loss(sums / constant, counted, UNITS[mode])
    means = sums / lengths.clamp(min=1)
    weight = counted if mode == "row_mean" else lengths / tokens.group_tokens
    return Loss(means, weight, UNITS[mode])

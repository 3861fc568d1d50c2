"""Rows that leave the loss, numerator and denominator alike, and rows whose surrogate leaves it.

Advantages are made on whole groups first: what is left out afterwards still was an answer of its group.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import Field

from relax_core.api.algorithm import ADVANTAGES, Requirements
from relax_core.api.columns import ColumnSpec
from relax_core.api.rows import StopReason
from relax_core.config import AlgorithmConfig
from relax_core.dataflow.columns import ROLLOUT_LOGPROBS, STOP_REASON
from relax_core.objectives.rejection import off_policy_rows

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.api.tokens import Tokens

GROUP_HAS_SIGNAL = ColumnSpec("group_has_signal", "bool", "row")
"""Whether the rewards of the row's group differ."""


class ExclusionSettings(AlgorithmConfig):
    """Which rows are not learned from."""

    drop_equal_groups: bool = Field(
        False,
        description="Groups whose rewards are all equal leave the loss: numerator, denominator, KL and entropy terms. "
        "They are not replaced by further groups; `rollout.drop_equal_rewards` does that.",
    )
    mask_truncated: bool = Field(
        False,
        description="Rows that ended by length leave the loss in the same way. Their rewards still count in the "
        "advantages of their group.",
    )
    off_policy_threshold: float | None = Field(
        None,
        gt=0,
        description="Off-policy sequence masking: a row with a negative advantage leaves the surrogate when the policy "
        "has moved by more than this, in nats per token, from the one that sampled it. Its tokens still count.",
    )

    def requirements(self) -> Requirements:
        """What a setting reads, and the column that tells groups without signal."""
        asked = super().requirements()
        needs = {STOP_REASON.name} if self.mask_truncated else set()
        needs |= {ROLLOUT_LOGPROBS.name} if self.off_policy_threshold is not None else set()
        produces = (*asked.produces, GROUP_HAS_SIGNAL) if self.drop_equal_groups else asked.produces
        return replace(asked, needs=asked.needs | needs, produces=produces)


def exclusion_mask(settings: ExclusionSettings, tokens: Tokens) -> Tensor | None:
    """``[N]`` 0 for tokens that leave the loss and 1 for others; ``None`` where no setting asks."""
    if not (settings.mask_truncated or settings.drop_equal_groups):
        return None
    mask = tokens.logprobs.detach().new_ones(len(tokens))
    if settings.mask_truncated:
        mask = mask * (tokens[STOP_REASON.name] != StopReason.LENGTH)
    if settings.drop_equal_groups:
        mask = mask * tokens[GROUP_HAS_SIGNAL.name]
    return mask


def off_policy_weights(settings: ExclusionSettings, tokens: Tokens) -> tuple[Tensor | float, dict[str, Tensor]]:
    """``[N]`` weights of the surrogate, 0 for what is off policy and 1 for the rest, and metrics."""
    if settings.off_policy_threshold is None:
        return 1.0, {}
    made = off_policy_rows(tokens, tokens[ROLLOUT_LOGPROBS.name], settings.off_policy_threshold)
    masked = tokens.spread(made.rejected) & (tokens[ADVANTAGES.name] < 0)
    weights = (~masked).to(made.distance.dtype)
    return weights, {"off_policy_masked": 1 - weights, "off_policy_distance": made.distance}

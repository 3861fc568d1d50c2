"""What policy gradients with group-relative advantages share: everything but the surrogate of the policy itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy.typing as npt
from pydantic import Field, field_validator, model_validator

from relax_core.api.algorithm import ADVANTAGES, Algorithm, Loss, Requirements, Trajectories
from relax_core.api.columns import ColumnSpec
from relax_core.api.rows import StopReason
from relax_core.config import AlgorithmConfig
from relax_core.dataflow.columns import OLD_LOGPROBS, REF_LOGPROBS, ROLLOUT_LOGPROBS, STOP_REASON
from relax_core.objectives.advantages import group_relative_advantages, has_signal
from relax_core.objectives.corrections import Correction, masked_importance_weights, truncated_importance_weights
from relax_core.objectives.kl import KLEstimator, k3, kl_loss
from relax_core.objectives.ratios import importance_ratio
from relax_core.objectives.reduction import UNITS, Reduction, reduce

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.api.tokens import Tokens

GROUP_HAS_SIGNAL = ColumnSpec("group_has_signal", "bool", "row")
"""Whether the rewards of the row's group differ."""

CORRECTION_BOUNDS = {"tis": (None, 2.0), "icepop": (0.5, 5.0)}
"""Smallest and largest weight of each correction where the configuration gives none."""


class GroupRelativeConfig(AlgorithmConfig):
    """Settings of every group-relative policy gradient."""

    normalize_by_std: bool = Field(True, description="Divide advantages by the group's standard deviation.")
    drop_equal_groups: bool = Field(
        False,
        description="Groups whose rewards are all equal leave the loss: numerator, denominator, KL and entropy terms. "
        "They are not replaced by further groups.",
    )
    mask_truncated: bool = Field(
        False,
        description="Rows that ended by length leave the loss in the same way. Their rewards still count in the "
        "advantages of their group.",
    )
    reduction: Reduction = Field("token_mean", description="How tokens become one loss, and what its denominator is.")
    constant_length: float | None = Field(
        None, gt=0, description="Only for, and required by, `row_sum_constant`: the length that sums are divided by."
    )
    kl_coefficient: float = Field(0.0, ge=0, description="Weight of the KL to the reference; 0 loads no reference.")
    kl_estimator: KLEstimator | None = Field(None, description="Only with a KL coefficient; `k3` when absent.")
    entropy_coefficient: float = Field(0.0, description="Weight of the entropy bonus; negative lowers the entropy.")
    log_entropy: bool = Field(True, description="Log the mean entropy.")
    correction: Literal["none", "tis", "icepop"] = Field(
        "none", description="For the gap from rollout to old policy: truncated or masked importance weights."
    )
    correction_min: float | None = Field(
        None, ge=0, description="Only for `icepop`: tokens with a smaller weight get none; 0.5 when absent."
    )
    correction_max: float | None = Field(
        None, gt=0, description="Largest weight: `tis` cuts it there (2.0 when absent), `icepop` drops beyond it (5.0)."
    )

    @field_validator("kl_estimator", mode="before")
    @classmethod
    def _refuse_k1(cls, value: object) -> object:
        if value == "k1":
            raise ValueError("k1 has zero expected gradient as a loss; use k2, k3 or weighted_k3")
        return value

    @model_validator(mode="after")
    def _refuse_ignored_settings(self) -> GroupRelativeConfig:
        by_constant = self.reduction == "row_sum_constant"
        if by_constant and self.constant_length is None:
            raise ValueError("reduction row_sum_constant needs constant_length, for example sampling.max_new_tokens")
        used = {
            "constant_length": (by_constant, "reduction: row_sum_constant"),
            "kl_estimator": (self.kl_coefficient > 0, "a kl_coefficient above 0"),
            "correction_min": (self.correction == "icepop", "correction: icepop"),
            "correction_max": (self.correction != "none", "correction: tis or icepop"),
        }
        for name, (is_used, condition) in used.items():
            if getattr(self, name) is not None and not is_used:
                raise ValueError(f"{name} would be ignored: it needs {condition}")
        low, high = self.correction_bounds
        if low is not None and high is not None and low > high:
            raise ValueError(f"correction_min {low} is above correction_max {high}")
        return self

    @property
    def correction_bounds(self) -> tuple[float | None, float | None]:
        """Smallest and largest weight of the correction, ``None`` where it has no such bound."""
        low, high = CORRECTION_BOUNDS.get(self.correction, (None, None))
        return (
            low if self.correction_min is None else self.correction_min,
            high if self.correction_max is None else self.correction_max,
        )

    def requirements(self) -> Requirements:
        """Reference, engine log-probabilities and entropy are asked for only where a setting reads them."""
        needs = {OLD_LOGPROBS.name}
        needs |= {REF_LOGPROBS.name} if self.kl_coefficient else set()
        needs |= {ROLLOUT_LOGPROBS.name} if self.correction != "none" else set()
        needs |= {STOP_REASON.name} if self.mask_truncated else set()
        outputs = {"logprobs"} | ({"entropy"} if self.entropy_coefficient or self.log_entropy else set())
        low, high = self.correction_bounds
        words = {"none": "none", "tis": f"TIS {high}", "icepop": f"IcePop {low}..{high}"}
        return Requirements(
            needs=frozenset(needs),
            outputs=frozenset(outputs),
            produces=(ADVANTAGES, GROUP_HAS_SIGNAL) if self.drop_equal_groups else (ADVANTAGES,),
            unit=UNITS[self.reduction],
            min_group_size=2,
            correction=words[self.correction],
        )


class GroupRelative(Algorithm):
    """A policy gradient with group-relative advantages; subclasses give the surrogate.

    loss of a token = surrogate · correction + kl_coefficient · KL(reference) - entropy_coefficient · entropy
    """

    config: GroupRelativeConfig

    @abstractmethod
    def surrogate(self, ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """``[N]`` loss to minimise, with gradient, and metrics. ``ratio``: current over old policy, with gradient."""

    def prepare(self, trajectories: Trajectories) -> Mapping[str, npt.ArrayLike]:
        """Advantages, and whether a group has any signal where ``drop_equal_groups`` reads it."""
        rewards, groups = trajectories.rewards, trajectories.groups
        columns: dict[str, npt.ArrayLike] = {
            ADVANTAGES.name: group_relative_advantages(rewards, groups, self.config.normalize_by_std)
        }
        if self.config.drop_equal_groups:
            columns[GROUP_HAS_SIGNAL.name] = has_signal(rewards, groups)
        return columns

    def loss(self, tokens: Tokens) -> Loss:
        """The loss of the class's formula, reduced over the tokens that no mask excludes."""
        config = self.config
        log_ratio = tokens.logprobs - tokens[OLD_LOGPROBS.name]
        ratio = importance_ratio(log_ratio)
        advantages = tokens[ADVANTAGES.name]
        value, surrogate_metrics = self.surrogate(ratio, advantages)
        metrics = {
            **surrogate_metrics,
            "ratio": ratio.detach(),
            "kl_old": k3(-log_ratio.detach()),
            "advantage_abs": advantages.abs(),
        }
        if config.correction != "none":
            correction = self._correction(tokens)
            value = value * correction.weights
            metrics["correction_weight"] = correction.weights
            metrics["correction_clipped"] = correction.clipped.to(value.dtype)
        if config.kl_coefficient:
            kl = kl_loss(config.kl_estimator or "k3", tokens.logprobs - tokens[REF_LOGPROBS.name], ratio)
            value = value + config.kl_coefficient * kl
            metrics["kl_ref"] = kl.detach()
        if config.entropy_coefficient:
            value = value - config.entropy_coefficient * tokens.entropy
        if config.log_entropy:
            metrics["entropy"] = tokens.entropy.detach()
        mask = self._mask(tokens)
        if mask is not None:
            metrics["masked"] = 1 - mask
        return replace(reduce(value, tokens, config.reduction, mask, config.constant_length), metrics=metrics)

    def _correction(self, tokens: Tokens) -> Correction:
        old, rollout = tokens[OLD_LOGPROBS.name], tokens[ROLLOUT_LOGPROBS.name]
        low, high = self.config.correction_bounds
        assert high is not None
        if low is None:
            return truncated_importance_weights(old, rollout, high)
        return masked_importance_weights(old, rollout, low, high)

    def _mask(self, tokens: Tokens) -> Tensor | None:
        if not (self.config.mask_truncated or self.config.drop_equal_groups):
            return None
        mask = tokens.logprobs.detach().new_ones(len(tokens))
        if self.config.mask_truncated:
            mask = mask * (tokens[STOP_REASON.name] != StopReason.LENGTH)
        if self.config.drop_equal_groups:
            mask = mask * tokens[GROUP_HAS_SIGNAL.name]
        return mask

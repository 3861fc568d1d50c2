"""The other answers to the same task are the baseline: advantages that most policy gradients of the field share."""

from __future__ import annotations

from dataclasses import replace

import numpy.typing as npt
from pydantic import Field

from relax_algos.policy_gradient import PolicyGradient, PolicyGradientConfig
from relax_algos.terms.kl import penalised_rewards
from relax_core.api.algorithm import Requirements, Trajectories
from relax_core.objectives.advantages import group_relative_advantages


class GroupRelativeConfig(PolicyGradientConfig):
    """Settings of every group-relative policy gradient."""

    normalize_by_std: bool = Field(True, description="Divide advantages by the group's standard deviation.")

    def requirements(self) -> Requirements:
        """A group of one has no baseline."""
        return replace(super().requirements(), min_group_size=2)


class GroupRelative(PolicyGradient):
    """A policy gradient with group-relative advantages; subclasses give the surrogate."""

    config: GroupRelativeConfig

    def advantages(self, trajectories: Trajectories) -> npt.ArrayLike:
        """``A_i = (r_i - mean(r)) / (std(r) + 1e-6)`` in the group; without the division if so configured."""
        rewards = penalised_rewards(self.config, trajectories)
        return group_relative_advantages(rewards, trajectories.groups, self.config.normalize_by_std)

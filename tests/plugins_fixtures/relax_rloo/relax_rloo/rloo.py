"""REINFORCE with a leave-one-out baseline (Ahmadian et al. 2024, arXiv 2402.14740)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from relax_core.api.algorithm import Algorithm, Loss, Trajectories
from relax_core.objectives.advantages import group_relative_advantages

if TYPE_CHECKING:
    from relax_core.api.tokens import Tokens


class RLOO(Algorithm):
    """The baseline of a trajectory is the mean reward of the others in its group."""

    def prepare(self, trajectories: Trajectories) -> Mapping[str, npt.ArrayLike]:
        """``A_i = r_i - mean of the other r = (r_i - mean r) · n / (n - 1)``; 0 where there is no other."""
        rewards, groups = trajectories.rewards, trajectories.groups
        sizes = np.bincount(groups)
        centred = group_relative_advantages(rewards, groups, normalize_by_std=False)
        return {"advantages": self.config.scale * centred * (sizes / np.maximum(sizes - 1, 1))[groups]}

    def loss(self, tokens: "Tokens") -> Loss:
        """``-A · log p`` of every token."""
        value = -tokens["advantages"] * tokens.logprobs
        return Loss(value, value.new_ones(len(tokens)))

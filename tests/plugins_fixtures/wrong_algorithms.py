"""A sound algorithm, and one for each classic error; a contract suite must tell them apart.

torch is imported where it is used: the configurations stand in this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict

from relax_core.api.algorithm import Algorithm, Loss, Requirements, Trajectories
from relax_core.api.context import Context
from relax_core.config import AlgorithmConfig
from relax_core.objectives.advantages import group_relative_advantages
from relax_core.objectives.ratios import importance_ratio

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.api.tokens import Tokens


class SoundConfig(AlgorithmConfig):
    def requirements(self) -> Requirements:
        return Requirements(needs=frozenset({"old_logprobs"}), min_group_size=2)


class Sound(Algorithm):
    """The importance-weighted policy gradient with the group's mean as baseline."""

    Config: ClassVar[type[AlgorithmConfig]] = SoundConfig

    def __init__(self) -> None:
        super().__init__(self.Config(), Context("test", 0, Path()))

    def prepare(self, trajectories: Trajectories) -> Mapping[str, npt.ArrayLike]:
        return {"advantages": group_relative_advantages(trajectories.rewards, trajectories.groups)}

    def ratio(self, tokens: Tokens) -> Tensor:
        return importance_ratio(tokens.logprobs - tokens["old_logprobs"])

    def loss(self, tokens: Tokens) -> Loss:
        ratio = self.ratio(tokens)
        value = -tokens["advantages"] * ratio
        return Loss(value, value.detach().new_ones(len(tokens)), metrics={"ratio": ratio.detach()})


class NoBaseline(Sound):
    def prepare(self, trajectories: Trajectories) -> Mapping[str, npt.ArrayLike]:
        return {"advantages": trajectories.rewards}


class InexactMean(Sound):
    """The mean of three times 0.1 is not 0.1."""

    def prepare(self, trajectories: Trajectories) -> Mapping[str, npt.ArrayLike]:
        rewards, groups = trajectories.rewards, trajectories.groups
        with np.errstate(over="ignore", invalid="ignore"):
            means = np.bincount(groups, rewards) / np.bincount(groups)
            return {"advantages": rewards - means[groups]}


class MeanOfTheBatch(Sound):
    """Its requirements say that a group is enough."""

    def prepare(self, trajectories: Trajectories) -> Mapping[str, npt.ArrayLike]:
        return {"advantages": group_relative_advantages(trajectories.rewards, np.zeros_like(trajectories.groups))}


class GroupsAreNeighbours(Sound):
    """Takes it that three trajectories in a row are a group."""

    def prepare(self, trajectories: Trajectories) -> Mapping[str, npt.ArrayLike]:
        return {"advantages": group_relative_advantages(trajectories.rewards, np.arange(len(trajectories)) // 3)}


class LeaveOneOutOfOne(Sound):
    """Divides by the number of the others, which may be none."""

    def prepare(self, trajectories: Trajectories) -> Mapping[str, npt.ArrayLike]:
        groups = trajectories.groups
        sizes = np.bincount(groups)
        centred = group_relative_advantages(trajectories.rewards, groups, normalize_by_std=False)
        with np.errstate(divide="ignore", invalid="ignore"):
            return {"advantages": centred * (sizes / (sizes - 1))[groups]}


class SquareOfRewards(Sound):
    """A variance in float32 overflows where the rewards do not."""

    def prepare(self, trajectories: Trajectories) -> Mapping[str, npt.ArrayLike]:
        with np.errstate(over="ignore"):
            advantages = group_relative_advantages(trajectories.rewards, trajectories.groups, normalize_by_std=False)
            return {"advantages": advantages * np.abs(advantages)}


class ChangesRewards(Sound):
    def prepare(self, trajectories: Trajectories) -> Mapping[str, npt.ArrayLike]:
        advantages = group_relative_advantages(trajectories.rewards, trajectories.groups)
        trajectories.rewards[:] = advantages
        return {"advantages": advantages}


class MeanOfTheMicroBatch(Sound):
    def loss(self, tokens: Tokens) -> Loss:
        loss = super().loss(tokens)
        return replace(loss, value=loss.value / max(len(tokens), 1))


class WeightsAddUpToOne(Sound):
    def loss(self, tokens: Tokens) -> Loss:
        loss = super().loss(tokens)
        return replace(loss, weight=loss.weight / max(len(tokens), 1))


class ScalarLoss(Sound):
    def loss(self, tokens: Tokens) -> Loss:
        loss = super().loss(tokens)
        return replace(loss, value=loss.value.mean(), weight=loss.weight.mean())


class LiveMetric(Sound):
    def loss(self, tokens: Tokens) -> Loss:
        return replace(super().loss(tokens), metrics={"ratio": self.ratio(tokens)})


class MeanOverRanks(Sound):
    """Normalises by what all ranks have, which the trainer does again."""

    def loss(self, tokens: Tokens) -> Loss:
        import torch
        from torch import distributed

        loss = super().loss(tokens)
        if not distributed.is_initialized():
            return loss
        most = torch.tensor(float(len(tokens)))
        distributed.all_reduce(most, distributed.ReduceOp.MAX)
        return replace(loss, weight=loss.weight * len(tokens) / most)


class CannotBeSent(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.sign = lambda value: -value


class HidesNaN(Sound):
    def loss(self, tokens: Tokens) -> Loss:
        loss = super().loss(tokens)
        return replace(loss, value=loss.value.nan_to_num(), metrics={})


class ReadsMore(Sound):
    def loss(self, tokens: Tokens) -> Loss:
        loss = super().loss(tokens)
        return replace(loss, value=loss.value + 0.1 * (tokens.logprobs - tokens["ref_logprobs"]))


class ReadsLessConfig(AlgorithmConfig):
    def requirements(self) -> Requirements:
        return Requirements(needs=frozenset({"old_logprobs", "ref_logprobs"}))


class ReadsLess(Sound):
    """A reference model would run for nothing."""

    Config = ReadsLessConfig


class UnboundedRatio(Sound):
    def ratio(self, tokens: Tokens) -> Tensor:
        return (tokens.logprobs - tokens["old_logprobs"]).exp()


class FiniteRatioWithoutBound(Sound):
    """Bounds what is finite and forgets what is not."""

    def ratio(self, tokens: Tokens) -> Tensor:
        log_ratio = tokens.logprobs - tokens["old_logprobs"]
        return log_ratio.where(log_ratio.isinf(), log_ratio.clamp(-20, 20)).exp()


class NoGradient(Sound):
    def ratio(self, tokens: Tokens) -> Tensor:
        return super().ratio(tokens).detach()


class WrongSign(Sound):
    def loss(self, tokens: Tokens) -> Loss:
        loss = super().loss(tokens)
        return replace(loss, value=-loss.value)


class LaterTokensCountMore(Sound):
    def loss(self, tokens: Tokens) -> Loss:
        loss = super().loss(tokens)
        ones = loss.weight.cumsum(0)
        first = (
            ones
            - ones.new_zeros(tokens.rows).scatter_reduce(0, tokens.row_index, ones, "amin", include_self=False)[
                tokens.row_index
            ]
        )
        return replace(loss, value=loss.value * (1 + first))


class GradientWithoutAdvantage(Sound):
    def loss(self, tokens: Tokens) -> Loss:
        loss = super().loss(tokens)
        return replace(loss, value=loss.value - 0.01 * tokens.logprobs)


class Noisy(Sound):
    def loss(self, tokens: Tokens) -> Loss:
        import torch

        loss = super().loss(tokens)
        return replace(loss, value=loss.value * torch.rand(()))


class ChangesColumns(Sound):
    def loss(self, tokens: Tokens) -> Loss:
        tokens.columns["advantages"].mul_(0.5)
        return super().loss(tokens)


class ChangingConfig(AlgorithmConfig):
    def requirements(self) -> Requirements:
        return Requirements(needs=frozenset({"old_logprobs"}), correction=str(next(CALLS)))


CALLS = count()


class ChangingRequirements(Sound):
    Config = ChangingConfig


class LaxConfig(SoundConfig):
    model_config = ConfigDict(extra="ignore")


class LaxConfiguration(Sound):
    Config = LaxConfig

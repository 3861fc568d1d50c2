"""Several rewards as one: weighted sum, checked, with the declared policy for errors."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from relax_core.api.errors import RelaxError, RewardError
from relax_core.api.reward import Reward
from relax_core.api.rows import Sample, Score
from relax_core.config.base import RewardConfig
from relax_core.rewards.processes import describe


@dataclass(frozen=True)
class NamedReward:
    """A reward with the name and the settings it has in the configuration."""

    name: str
    reward: Reward
    config: RewardConfig


@dataclass(frozen=True)
class GroupScores:
    """Scores of one group, or the error for which the group is dropped."""

    scores: Sequence[Score] = ()
    error: RelaxError | None = None


@dataclass(frozen=True)
class Scorer:
    """All rewards of a run. The value is Σ weight · reward; it abstains as soon as one reward does.

    Args:
        rewards: In the order of the configuration.
        timeout: Seconds for one group in one reward.
    """

    rewards: Sequence[NamedReward] = field(default_factory=tuple)
    timeout: float = 1800.0

    async def score(self, samples: Sequence[Sample]) -> GroupScores:
        """Scores the samples of one group.

        Raises:
            RewardError: A reward failed whose ``on_error`` is ``fail``; with ``drop`` it is returned instead.
        """
        results = []
        for named in self.rewards:
            try:
                results.append(await self._checked(named, samples))
            except RewardError as error:
                if named.config.on_error == "fail":
                    raise
                return GroupScores(error=error)
        return GroupScores([self._combine(scores) for scores in zip(*results, strict=True)])

    async def _checked(self, named: NamedReward, samples: Sequence[Sample]) -> Sequence[Score]:
        task = samples[0].task.index
        deadline = asyncio.timeout(self.timeout)
        try:
            async with deadline:
                scores = await named.reward.score(samples)
        except RelaxError:
            raise
        except TimeoutError as error:
            late = f"timeouts.reward: not scored in {self.timeout:g} s"
            raise RewardError(
                f"reward {named.name}: task {task}: {late if deadline.expired() else describe(error)}"
            ) from error
        except Exception as error:  # a plugin's own mistake is an error of the reward like any other
            raise RewardError(f"reward {named.name}: task {task}: {describe(error)}") from error
        if len(scores) != len(samples):
            raise RewardError(f"reward {named.name}: {len(scores)} scores for {len(samples)} samples")
        for sample, score in zip(samples, scores, strict=True):
            if score.value is not None and not math.isfinite(score.value):
                raise RewardError(f"reward {named.name}: task {sample.task.index}: returned {score.value}")
        return scores

    def _combine(self, scores: Sequence[Score]) -> Score:
        parts: dict[str, float] = {}
        total: float | None = 0.0
        for named, score in zip(self.rewards, scores, strict=True):
            parts |= {f"{named.name}/{part}": value for part, value in score.parts.items()}
            if score.value is not None:
                parts[named.name] = score.value
            total = None if total is None or score.value is None else total + named.config.weight * score.value
        return Score(total, parts)

    async def start(self) -> None:
        """Starts every reward."""
        await asyncio.gather(*(named.reward.start() for named in self.rewards))

    async def close(self) -> None:
        """Closes every reward."""
        await asyncio.gather(*(named.reward.close() for named in self.rewards))

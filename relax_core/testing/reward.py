"""What every reward keeps to."""

import asyncio
import math
from collections.abc import Sequence

import pytest

from relax_core.api.reward import Reward
from relax_core.api.rows import Sample, Score

Scores = list[Sequence[Score]]


class RewardContract:
    """Subclass it and override both fixtures; everything else is inherited.

    The reward is started once per test and closed at its end.
    """

    @pytest.fixture
    def reward(self) -> Reward:
        """A reward, not started."""
        raise NotImplementedError

    @pytest.fixture
    def samples(self) -> Sequence[Sample]:
        """At least two samples of one task that do not all get the same score."""
        raise NotImplementedError

    def test_scores_keep_number_and_order(self, reward: Reward, samples: Sequence[Sample]) -> None:
        backwards = list(reversed(samples))
        forward, backward, empty = run(reward, samples, backwards, [])
        assert len(forward) == len(samples), "there must be one score per sample"
        assert list(backward) == list(reversed(forward)), "a score belongs to its sample, whatever the order"
        assert list(empty) == [], "no samples, no scores"
        assert len({score.value for score in forward}) > 1, "the samples of this suite must not all score the same"

    def test_scoring_again_gives_the_same(self, reward: Reward, samples: Sequence[Sample]) -> None:
        first, second = run(reward, samples, samples)
        assert list(first) == list(second), "equal input must give equal scores"

    def test_scores_are_finite_or_abstain(self, reward: Reward, samples: Sequence[Sample]) -> None:
        for score in run(reward, samples)[0]:
            assert isinstance(score, Score), "score() returns Score objects"
            assert score.value is None or math.isfinite(score.value), "NaN and infinity are errors, not scores"
            for name, part in score.parts.items():
                assert math.isfinite(part), f"part {name!r} must be finite"

    def test_close_can_be_called_twice(self, reward: Reward) -> None:
        async def twice() -> None:
            await reward.start()
            await reward.close()
            await reward.close()

        asyncio.run(twice())


def run(reward: Reward, *groups: Sequence[Sample]) -> Scores:
    """Starts the reward, scores the groups side by side and closes it."""

    async def body() -> Scores:
        await reward.start()
        try:
            return list(await asyncio.gather(*(reward.score(group) for group in groups)))
        finally:
            await reward.close()

    return asyncio.run(body())

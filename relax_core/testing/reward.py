"""What every reward keeps to."""

import asyncio
import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace

import pytest

from relax_core.api.errors import RewardError
from relax_core.api.reward import Reward
from relax_core.api.rows import Sample, Score, StopReason

Scores = list[Sequence[Score]]

STRANGE_TEXTS = (
    "",
    " \n\t",
    "nan",
    "-inf",
    "9" * 400,
    "\\boxed{" * 50,
    "\x00\x1b[2J\N{REPLACEMENT CHARACTER}",
    "\N{ARABIC-INDIC DIGIT FOUR}\N{SUPERSCRIPT TWO}",
)
"""What a policy writes that has learnt nothing yet."""


class RewardContract:
    """Subclass it and override both fixtures; everything else is inherited.

    The reward is started once per test and closed at its end.
    """

    judges_alone = True
    """Whether a score depends on its sample only; not so for a reward that compares the samples of a group."""

    @pytest.fixture
    def reward(self) -> Reward:
        """A reward, not started."""
        raise NotImplementedError("override the fixture `reward`")

    @pytest.fixture
    def samples(self) -> Sequence[Sample]:
        """At least two samples of one task that do not all get the same score."""
        raise NotImplementedError("override the fixture `samples`")

    def test_scores_keep_number_and_order(self, reward: Reward, samples: Sequence[Sample]) -> None:
        backwards = list(reversed(samples))
        forward, backward, empty = run(reward, samples, backwards, [])
        assert len(forward) == len(samples), "there must be one score per sample"
        assert list(backward) == list(reversed(forward)), "a score belongs to its sample, whatever the order"
        assert list(empty) == [], "no samples, no scores"

    def test_different_answers_get_different_scores(self, reward: Reward, samples: Sequence[Sample]) -> None:
        scores = run(reward, samples)[0]
        assert len({score.value for score in scores}) > 1, "the samples of this suite must not all score the same"

    def test_equal_answers_get_equal_scores(self, reward: Reward, samples: Sequence[Sample]) -> None:
        twice = run(reward, [sample for sample in samples for _ in range(2)])[0]
        assert len(twice) == 2 * len(samples), "two equal samples are two samples, with a score each"
        assert list(twice[::2]) == list(twice[1::2]), "equal samples of a group must get equal scores"

    def test_scoring_again_gives_the_same(self, reward: Reward, samples: Sequence[Sample]) -> None:
        first, second, third = run(reward, samples, samples, samples)
        assert list(first) == list(second) == list(third), "equal input must give equal scores"

    def test_scores_do_not_depend_on_the_others(self, reward: Reward, samples: Sequence[Sample]) -> None:
        if not self.judges_alone:
            pytest.skip("compares the samples of a group")
        together, *alone = run(reward, samples, *([sample] for sample in samples))
        assert list(together) == [score for scores in alone for score in scores], (
            "a sample scores differently in a group: if that is meant, set `judges_alone = False`"
        )

    def test_scores_are_finite_or_abstain(self, reward: Reward, samples: Sequence[Sample]) -> None:
        assert_sound(run(reward, samples)[0])

    def test_strange_answers_are_scored_or_refused(self, reward: Reward, samples: Sequence[Sample]) -> None:
        strange = [
            replace(samples[0], text=text, token_ids=list(range(bool(text))), stop_reason=StopReason.LENGTH)
            for text in STRANGE_TEXTS
        ]
        try:
            answers = run(reward, *([sample] for sample in strange), refusals=True)
        except Exception as error:
            raise AssertionError(f"every answer is scored, or refused with a RewardError, not {error!r}") from error
        for scores in answers:
            assert_sound(scores)

    def test_samples_are_left_as_they_are(self, reward: Reward, samples: Sequence[Sample]) -> None:
        before = deepcopy(samples)
        run(reward, samples)
        assert list(samples) == list(before), "score() changes the samples, which others read after it"

    def test_close_can_be_called_twice(self, reward: Reward) -> None:
        async def twice() -> None:
            await reward.start()
            await reward.close()
            await reward.close()

        asyncio.run(twice())


def assert_sound(scores: Sequence[Score]) -> None:
    """Every score is a finite number, or abstains."""
    for score in scores:
        assert isinstance(score, Score), f"score() returns Score objects, not {score!r}"
        assert score.value is None or math.isfinite(score.value), "NaN and infinity are errors, not scores"
        for name, part in score.parts.items():
            assert math.isfinite(part), f"part {name!r} must be finite"


def run(reward: Reward, *groups: Sequence[Sample], refusals: bool = False) -> Scores:
    """Starts the reward, scores the groups side by side and closes it.

    Args:
        reward: Not started.
        groups: Samples of one task each.
        refusals: Whether a group may be refused with a ``RewardError``; it then has no scores.
    """

    async def body() -> Scores:
        await reward.start()
        try:
            return list(await asyncio.gather(*(one(group) for group in groups)))
        finally:
            await reward.close()

    async def one(group: Sequence[Sample]) -> Sequence[Score]:
        try:
            return await reward.score(group)
        except RewardError:
            if not refusals:
                raise
            return []

    return asyncio.run(body())

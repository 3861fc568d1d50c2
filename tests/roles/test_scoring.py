"""Several rewards as one: sums, abstentions, and the declared policy for errors."""

import asyncio
import math
import re
from collections.abc import Sequence
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.api.errors import RewardError
from relax_core.api.reward import Reward
from relax_core.api.rows import Sample, Score, StopReason, Task
from relax_core.config import RewardConfig
from relax_core.roles.scoring import NamedReward, Scorer

OnError = Literal["fail", "drop"]


class Fixed(Reward):
    """Gives the scores it was made with, whatever it sees."""

    def __init__(self, *scores: Score | float | None) -> None:
        self.scores = [score if isinstance(score, Score) else Score(score) for score in scores]

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        return self.scores


class Failing(Reward):
    """Raises."""

    def __init__(self) -> None: ...

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        raise RewardError("reward failing, task 0: raised ValueError")


class Mistaken(Reward):
    """Has a mistake, as third parties' code may."""

    def __init__(self) -> None: ...

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        return [Score(1 / len(sample.task.metadata)) for sample in samples]


def named(name: str, reward: Reward, weight: float = 1.0, on_error: OnError = "fail") -> NamedReward:
    return NamedReward(name, reward, RewardConfig(weight=weight, on_error=on_error))


def samples(count: int) -> list[Sample]:
    return [Sample(Task(7, "1+1="), "2", [50], StopReason.STOP) for _ in range(count)]


weights = st.floats(-10, 10)


@given(
    rewards=st.lists(st.tuples(weights, weights, weights), min_size=1, max_size=5),
)
async def test_the_value_is_the_weighted_sum(rewards: list[tuple[float, float, float]]) -> None:
    parts = [named(f"r{i}", Fixed(one, two), weight) for i, (weight, one, two) in enumerate(rewards)]
    result = await Scorer(parts).score(samples(2))
    for place in (0, 1):
        expected = math.fsum(reward[0] * reward[1 + place] for reward in rewards)
        value = result.scores[place].value
        assert value == pytest.approx(expected, abs=1e-9)
        assert result.scores[place].parts == {f"r{i}": reward[1 + place] for i, reward in enumerate(rewards)}


async def test_parts_carry_the_name_of_their_reward() -> None:
    scorer = Scorer([named("exact", Fixed(Score(1.0, {"match": 1.0}))), named("length", Fixed(0.5), 2.0)])
    (score,) = (await scorer.score(samples(1))).scores
    assert score == Score(2.0, {"exact/match": 1.0, "exact": 1.0, "length": 0.5})


async def test_a_trajectory_abstains_as_soon_as_one_reward_does_and_the_others_do_not() -> None:
    scorer = Scorer([named("first", Fixed(None, 1.0, 2.0)), named("second", Fixed(3.0, None, 4.0))])
    result = await scorer.score(samples(3))
    assert [score.value for score in result.scores] == [None, None, 6.0]
    assert result.scores[0].parts == {"second": 3.0}


async def test_an_abstention_is_not_a_zero_even_with_weight_zero() -> None:
    scorer = Scorer([named("silent", Fixed(None), weight=0.0), named("other", Fixed(1.0))])
    assert (await scorer.score(samples(1))).scores[0].value is None


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (Failing(), "raised ValueError"),
        (Mistaken(), "reward bad: task 7: raised ZeroDivisionError: division by zero \\(.*test_scoring.py:\\d+\\)"),
        (Fixed(1.0, math.nan), "reward bad: task 7: returned nan"),
        (Fixed(1.0, -math.inf), "reward bad: task 7: returned -inf"),
        (Fixed(1.0), "reward bad: 1 scores for 2 samples"),
    ],
)
async def test_an_error_ends_the_run_or_drops_the_group_as_declared(reward: Reward, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        await Scorer([named("bad", reward)]).score(samples(2))
    dropped = await Scorer([named("good", Fixed(1.0, 1.0)), named("bad", reward, on_error="drop")]).score(samples(2))
    assert re.search(message, str(dropped.error))
    assert dropped.scores == ()


class Waiting(Reward):
    """Never answers."""

    def __init__(self) -> None: ...

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        await asyncio.Event().wait()
        return []


class ItsOwnDeadline(Waiting):
    """Gives up by itself."""

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        raise TimeoutError("the judge does not answer")


async def test_a_reward_that_never_answers_has_failed_at_the_deadline() -> None:
    late = "reward slow: task 7: timeouts.reward: not scored in 0.01 s"
    with pytest.raises(RewardError, match=re.escape(late)):
        await Scorer([named("slow", Waiting())], timeout=0.01).score(samples(2))
    dropped = await Scorer([named("slow", Waiting(), on_error="drop")], timeout=0.01).score(samples(2))
    assert str(dropped.error) == late
    with pytest.raises(RewardError, match="raised TimeoutError: the judge does not answer"):
        await Scorer([named("slow", ItsOwnDeadline())]).score(samples(2))

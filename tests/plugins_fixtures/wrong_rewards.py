"""A sound reward, and one for each classic error."""

import random
from collections.abc import Sequence
from pathlib import Path

from relax_core.api.context import Context
from relax_core.api.reward import Reward
from relax_core.api.rows import Sample, Score, StopReason, Task
from relax_core.config import RewardConfig

TEXTS = ("4", "5", "it is 4", "")


def samples() -> list[Sample]:
    task = Task(0, "2+2=", "4", {"level": [1]})
    return [Sample(task, text, [ord(letter) for letter in text], StopReason.STOP) for text in TEXTS]


class Sound(Reward):
    """1 for the label alone, less for a text that ends with it."""

    def __init__(self) -> None:
        super().__init__(RewardConfig(), Context("test", 0, Path()))

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        return [self.one(sample) for sample in samples]

    def one(self, sample: Sample) -> Score:
        right = sample.text.endswith(str(sample.task.label))
        return Score(right / (1 + len(sample.text)), {"right": float(right)})


class BestFirst(Sound):
    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        return sorted(await super().score(samples), key=lambda score: -(score.value or 0.0))


class OncePerText(Sound):
    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        return list({sample.text: self.one(sample) for sample in samples}.values())


class AllTheSame(Sound):
    def one(self, sample: Sample) -> Score:
        return Score(1.0)


class Random(Sound):
    def one(self, sample: Sample) -> Score:
        return Score(random.random())


class FirstComeFirstServed(Sound):
    """The second of two equal answers gets less."""

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        seen: set[str] = set()
        scores = []
        for sample in samples:
            scores.append(Score(0.0) if sample.text in seen else self.one(sample))
            seen.add(sample.text)
        return scores


class RunningMean(Sound):
    """Remembers what it has seen in other groups."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        self.calls += len(samples) > 0
        return [Score((score.value or 0.0) / self.calls) for score in await super().score(samples)]


class RelativeToTheGroup(Sound):
    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        best = max((len(sample.text) for sample in samples), default=0)
        return [Score(len(sample.text) / max(best, 1)) for sample in samples]


class NotANumber(Sound):
    def one(self, sample: Sample) -> Score:
        return Score(float("nan") if "it" in sample.text else super().one(sample).value)


class InfinitePart(Sound):
    def one(self, sample: Sample) -> Score:
        return Score(super().one(sample).value, {"length": float("inf")})


class PlainNumbers(Sound):
    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        return [self.one(sample).value for sample in samples]  # type: ignore[misc]


class ReadsNumbers(Sound):
    """``float`` accepts "nan" and "-inf", and fails at words."""

    def one(self, sample: Sample) -> Score:
        try:
            return Score(-abs(float(sample.text) - float(sample.task.label)))
        except ValueError:
            return Score(-1e3 - len(sample.text))


class TakesFirstWord(Sound):
    """An answer of white space has none."""

    def one(self, sample: Sample) -> Score:
        return Score(float(sample.text.split()[0] == sample.task.label) if sample.text else 0.0)


class DropsStopToken(Sound):
    def one(self, sample: Sample) -> Score:
        if sample.token_ids:
            sample.token_ids.pop()  # type: ignore[attr-defined]
        return super().one(sample)


class ClosesOnce(Sound):
    async def start(self) -> None:
        self.workers: list[str] | None = ["one"]

    async def close(self) -> None:
        assert self.workers is not None
        self.workers.clear()
        self.workers = None

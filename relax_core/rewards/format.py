"""The text has a shape: think first, then answer, or any regular expression."""

import asyncio
from collections.abc import Sequence

import regex

from relax_core.api.context import Context
from relax_core.api.errors import RewardError
from relax_core.api.reward import Reward
from relax_core.api.rows import Sample, Score
from relax_core.rewards.config import FormatRewardConfig


class FormatReward(Reward):
    """1 when the pattern matches the whole text, else 0.

    A pattern can need time exponential in the text, which the standard library's ``re`` cannot stop; ``regex`` can.
    """

    def __init__(self, config: FormatRewardConfig, context: Context) -> None:
        self.config = config
        self._pattern = regex.compile(config.pattern, regex.DOTALL)

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        return await asyncio.to_thread(lambda: [self._score(sample) for sample in samples])

    def _score(self, sample: Sample) -> Score:
        limit = self.config.timeout_seconds
        try:
            match = self._pattern.fullmatch(sample.text, timeout=limit, concurrent=True)
        except TimeoutError:
            raise RewardError(
                f"reward format, task {sample.task.index}: pattern {self.config.pattern!r} ran past {limit:g} s"
            ) from None
        return Score(float(match is not None))

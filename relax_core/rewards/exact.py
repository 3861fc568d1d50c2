"""The text is the label, character by character."""

from collections.abc import Sequence

from relax_core.api.context import Context
from relax_core.api.errors import RewardError
from relax_core.api.reward import Reward
from relax_core.api.rows import Sample, Score, StopReason
from relax_core.rewards.config import ExactRewardConfig


class ExactReward(Reward):
    """1 when the text equals the label, a string or a number; else 0.

    Parts: ``match`` whatever the stop reason, ``stopped`` 1 when the generation ended by itself.
    """

    def __init__(self, config: ExactRewardConfig, context: Context) -> None:
        self.config = config

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Sample) -> Score:
        text, label = sample.text, label_text(sample)
        if self.config.strip:
            text, label = text.strip(), label.strip()
        match, stopped = text == label, sample.stop_reason is StopReason.STOP
        value = match and (stopped or not self.config.require_stop)
        return Score(float(value), {"match": float(match), "stopped": float(stopped)})


def label_text(sample: Sample) -> str:
    """A label that is a string or a number, as text.

    Raises:
        RewardError: The label is missing or of another type.
    """
    label = sample.task.label
    if isinstance(label, str | int | float) and not isinstance(label, bool):
        return str(label)
    raise RewardError(f"task {sample.task.index}: the label must be a string or a number, but is {label!r}")

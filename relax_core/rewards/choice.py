"""Multiple choice: the letter that a text settles on, found as graders of GPQA do."""

import re
from collections.abc import Sequence

from relax_core.api.context import Context
from relax_core.api.errors import RewardError
from relax_core.api.reward import Reward
from relax_core.api.rows import Sample, Score
from relax_core.rewards.config import ChoiceRewardConfig


class ChoiceReward(Reward):
    """1 when the chosen letter is the label's, else 0; also 0 when no letter is found.

    The label is a letter, an index from 0, or the text of one of the metadata's ``choices``; a letter goes first.
    The text's letter is that of the last ``\\boxed{C}``, else of the last "answer is (C)" or "Answer: C", else the
    last capital that stands alone.

    Parts: ``found`` 1 when the text has a letter.
    """

    def __init__(self, config: ChoiceRewardConfig, context: Context) -> None:
        self.letters = config.letters
        letter = rf"([{config.letters}])(?![A-Za-z])"
        self._patterns = (
            re.compile(rf"\\boxed\{{\s*(?:\\text\w*\{{)?\s*\(?{letter}"),
            re.compile(
                rf"(?i:\banswer\b)[\s*:=]*(?i:is\b|would be\b)?[\s*:=]*(?i:option\b|choice\b)?[\s*$(\[]*{letter}"
            ),
            re.compile(rf"(?<![A-Za-z]){letter}"),
        )

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        return [self._score(sample) for sample in samples]

    def chosen(self, text: str) -> str | None:
        """The letter a text settles on, ``None`` without one."""
        for pattern in self._patterns:
            found = pattern.findall(text)
            if found:
                return str(found[-1])
        return None

    def _score(self, sample: Sample) -> Score:
        letter = self.chosen(sample.text)
        return Score(float(letter == self._right(sample)), {"found": float(letter is not None)})

    def _right(self, sample: Sample) -> str:
        label = sample.task.label
        choices = [str(choice).strip() for choice in sample.task.metadata.get("choices", ())]
        if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < len(self.letters):
            return self.letters[label]
        if isinstance(label, str):
            text = label.strip()
            if len(text) == 1 and text in self.letters:
                return text
            if text in choices[: len(self.letters)]:
                return self.letters[choices.index(text)]
        raise RewardError(
            f"reward choice, task {sample.task.index}: the label {label!r} is no letter of {self.letters}, no index of "
            f"one from 0, and not the text of one of the {len(choices)} metadata.choices"
        )

"""Settings of the embedded rewards."""

from typing import Literal

import regex
from pydantic import Field, field_validator

from relax_core.config import RewardConfig

THINK_THEN_ANSWER = r"<think>(?:(?!</?think>).)*</think>\s*<answer>(?:(?!</?answer>).)*</answer>\s*"


class ExactRewardConfig(RewardConfig):
    """1 when the text is the label, else 0."""

    strip: bool = Field(True, description="Ignore white space around text and label.")
    require_stop: bool = Field(True, description="A generation that did not end by itself scores 0.")


class ChoiceRewardConfig(RewardConfig):
    """1 when the letter that the text settles on is the right one, else 0."""

    letters: str = Field("ABCD", min_length=2, description="Letters of the choices, in their order.")

    @field_validator("letters")
    @classmethod
    def _distinct_capitals(cls, letters: str) -> str:
        if not (letters.isascii() and letters.isalpha() and letters.isupper() and len(set(letters)) == len(letters)):
            raise ValueError(f"letters: {letters!r} must be distinct capital letters, such as 'ABCD'")
        return letters


class FormatRewardConfig(RewardConfig):
    """1 when the whole text has the wanted shape, else 0."""

    pattern: str = Field(
        THINK_THEN_ANSWER,
        description="Regular expression for the whole text, `.` matching line ends; by default think then answer tags.",
    )

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        return compilable("pattern", pattern)


class MathRewardConfig(RewardConfig):
    """1 when math-verify finds the text's answer equal to the label, else 0."""

    on_error: Literal["fail", "drop"] = Field(
        "drop", description="As for every reward; a model can write a formula that no solver finishes, so not `fail`."
    )
    workers: int = Field(2, ge=1, description="Processes that verify.")


class PythonRewardConfig(RewardConfig):
    """The value of a user's own function."""

    function: str = Field(
        description="`path/to/file.py:name` or `package.module:name`; called with those of prompt, response, label, "
        "metadata, token_ids, stop_reason and task_index that it names."
    )
    workers: int = Field(2, ge=1, description="Processes that run the function.")

    @field_validator("function")
    @classmethod
    def _names_a_function(cls, function: str) -> str:
        place, _, name = function.rpartition(":")
        if not place or not name.isidentifier():
            raise ValueError(f"function: {function!r} must be 'path/to/file.py:name' or 'package.module:name'")
        return function


class ReasoningGymRewardConfig(RewardConfig):
    """The score that reasoning-gym's own scorer of the task gives."""

    extract: str | None = Field(
        None,
        description="Regular expression for the answer in the text, its last match and there the first group if it has "
        "one; by default the answer is the text without white space around it.",
    )
    on_error: Literal["fail", "drop"] = Field(
        "drop", description="As for every reward; some scorers evaluate what the model wrote, so not `fail`."
    )
    workers: int = Field(1, ge=1, description="Processes that score; each needs seconds to start.")

    @field_validator("extract")
    @classmethod
    def _compiles(cls, extract: str | None) -> str | None:
        return None if extract is None else compilable("extract", extract)


def compilable(key: str, pattern: str) -> str:
    """The pattern itself; ``ValueError`` with key, pattern and place when it is not a regular expression."""
    try:
        regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"{key}: {pattern!r} is not a regular expression: {error}") from None
    return pattern

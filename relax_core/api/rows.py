"""The nouns of a rollout: tasks, why a generation stopped, and what a reward is shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from relax_core.api.media import Medium

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """A prompt with its label.

    Args:
        index: Position in the dataset.
        prompt: Plain text, or chat messages in OpenAI's shape (``[{"role": ..., "content": ...}]``).
        label: What a reward compares with; any JSON value.
        metadata: Further JSON values for the reward.
        media: Images, sound and video, in the order in which the prompt refers to them: with ``<image>``, ``<audio>``
            and ``<video>`` in a text, with parts ``{"type": "image"}`` and so on in messages. Without media such marks
            are text like any other.
    """

    index: int
    prompt: str | Sequence[Message]
    label: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    media: Sequence[Medium] = ()


class StopReason(IntEnum):
    """Why a generation ended."""

    STOP = 0
    """The end-of-sequence token, a stop token or a stop string; it is part of the tokens and of the mask."""
    LENGTH = 1
    """``max_new_tokens`` or the context limit."""
    ABORT = 2
    """Aborted by the caller; the tokens so far are kept."""
    TOOL = 3
    ENVIRONMENT = 4
    ERROR = 5


@dataclass(frozen=True)
class Sample:
    """One trajectory as a reward sees it.

    Args:
        task: The task it answers.
        text: The model's tokens decoded without special tokens. Ids are the truth; text is for people and rewards.
        token_ids: The model's own tokens, stop token included.
        stop_reason: Why the generation ended.
    """

    task: Task
    text: str
    token_ids: Sequence[int]
    stop_reason: StopReason


@dataclass(frozen=True)
class Score:
    """A reward's verdict.

    Args:
        value: The reward; ``None`` abstains: the trajectory leaves the statistics and the loss, and is counted.
        parts: Named parts for the metrics.
    """

    value: float | None
    parts: Mapping[str, float] = field(default_factory=dict)

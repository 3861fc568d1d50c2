"""When a trajectory ends by what was generated."""

from collections.abc import Sequence
from typing import Any

from relax_core.api.rows import StopReason
from relax_core.engines.torch.trajectory import TorchTrajectory

MARGIN = 4
"""Tokens decoded beyond a stop string's own length, for a character or a leading space that the cut destroys."""


def stop_reason(trajectory: TorchTrajectory, tokenizer: Any) -> StopReason | None:
    """Why the trajectory ends with its last token, or ``None``; a stop goes before a limit."""
    if trajectory.token_ids[-1] in trajectory.stop_ids:
        return StopReason.STOP
    stop = trajectory.request.sampling.stop
    if stop and _ends_with_one_of(stop, trajectory, tokenizer):
        return StopReason.STOP
    return StopReason.LENGTH if len(trajectory.token_ids) >= trajectory.limit else None


def _ends_with_one_of(stop: Sequence[str], trajectory: TorchTrajectory, tokenizer: Any) -> bool:
    """Whether the newest tokens complete a stop string.

    Earlier ones would have ended the trajectory, and a token is at least one byte of text: so many tokens as the
    longest stop string has bytes are enough, and whole characters come out of tokens that hold parts of them.
    """
    window = max(len(text.encode()) for text in stop) + MARGIN
    newest = trajectory.newest(window)
    text = tokenizer.decode(newest, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return any(each in text for each in stop)

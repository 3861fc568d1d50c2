"""Rewards shaped by what an answer is like beside being right."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import IntArray


def soft_overlong_punishment(lengths: IntArray, longest: int, buffer: int) -> npt.NDArray[np.float64]:
    """A punishment that grows with the length of an answer (DAPO, arXiv 2503.14476, equation 13).

         0                                  length <= longest - buffer
        (longest - buffer - length) / buffer    in between
        -1                                  length >  longest

    Args:
        lengths: ``[n]`` tokens of each answer.
        longest: Length, in tokens, from which on the punishment is -1.
        buffer: Tokens below it over which the punishment grows; positive.

    Returns:
        ``[n]`` between -1 and 0, to be added to the rewards.
    """
    return np.clip((longest - buffer - lengths.astype(np.float64)) / buffer, -1.0, 0.0)

"""Soft overlong punishment of DAPO: long answers lose reward before they are cut off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from relax_algos.terms.checks import refuse_ignored
from relax_core.api.algorithm import Requirements, Trajectories
from relax_core.config import AlgorithmConfig
from relax_core.dataflow.columns import LOSS_MASK
from relax_core.dataflow.rows import trainable_counts
from relax_core.objectives.shaping import soft_overlong_punishment


class OverlongSettings(AlgorithmConfig):
    """From ``overlong_length - overlong_buffer`` trainable tokens on, the reward falls linearly."""

    overlong_length: int | None = Field(
        None,
        ge=1,
        description="Trainable tokens at which an answer has lost `overlong_penalty`, at most sampling.max_new_tokens; "
        "absent: no punishment.",
    )
    overlong_buffer: int | None = Field(
        None, ge=1, description="Tokens below `overlong_length` over which the punishment grows; a fifth when absent."
    )
    overlong_penalty: float = Field(1.0, gt=0, description="Largest punishment, in the unit of the rewards.")

    @model_validator(mode="after")
    def _check_overlong(self) -> OverlongSettings:
        used = (self.overlong_length is not None, "overlong_length")
        refuse_ignored(self, {"overlong_buffer": used, "overlong_penalty": used})
        if self.overlong_length is not None and (self.overlong_buffer or 0) > self.overlong_length:
            raise ValueError(f"overlong_buffer {self.overlong_buffer} is above overlong_length {self.overlong_length}")
        return self

    def requirements(self) -> Requirements:
        """The tokens are counted before advantages are made."""
        asked = super().requirements()
        if self.overlong_length is None:
            return asked
        return replace(asked, prepare_reads=asked.prepare_reads | {LOSS_MASK.name})


def overlong_rewards(settings: OverlongSettings, trajectories: Trajectories) -> npt.NDArray[np.float64]:
    """``[n]`` rewards with the punishment added."""
    longest = settings.overlong_length
    if longest is None:
        return trajectories.rewards
    buffer = settings.overlong_buffer or max(longest // 5, 1)
    lengths = trainable_counts(trajectories.table[LOSS_MASK.name])
    return trajectories.rewards + settings.overlong_penalty * soft_overlong_punishment(lengths, longest, buffer)

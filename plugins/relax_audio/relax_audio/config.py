"""Settings of the audio encoder. Imports no torch."""

from typing import Literal

from pydantic import Field

from relax_core.config import Config


class AudioEncoderConfig(Config):
    """How long sound may be; everything else the model's folder says."""

    max_seconds: float = Field(30.0, gt=0, description="Longest sound, in seconds.")
    too_long: Literal["refuse", "cut"] = Field(
        "refuse", description="Longer sound: its task is dropped and counted, or it ends there."
    )

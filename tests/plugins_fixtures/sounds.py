"""Sound of every sort, as samples and as the bytes of files."""

from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile

Samples = npt.NDArray[np.float32]


def noise(samples: int, seed: int = 0) -> Samples:
    """Between -0.5 and 0.5, with pauses."""
    draw = np.random.default_rng(seed)
    return (draw.uniform(-0.5, 0.5, samples) * (np.sin(np.arange(samples) / 900) > -0.3)).astype(np.float32)


def tone(seconds: float, rate: int, hertz: float = 440.0) -> Samples:
    """A sine."""
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def sound_file(samples: npt.NDArray[Any], rate: int = 16000, container: str = "WAV", subtype: str = "PCM_16") -> bytes:
    """A file's bytes."""
    file = BytesIO()
    soundfile.write(file, samples, rate, subtype, format=container)
    return file.getvalue()

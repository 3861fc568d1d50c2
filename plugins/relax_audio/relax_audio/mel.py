"""The logarithmic mel spectrogram of Whisper, as transformers' ``WhisperFeatureExtractor`` computes it."""

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from relax_audio.hearing import Hearing

if TYPE_CHECKING:
    from torch import Tensor

HIGHEST = 8000.0
"""Hertz at which the highest mel band ends."""
_LINEAR = 200.0 / 3.0
"""Hertz of a mel below 1000 Hz."""
_KNEE = 1000.0 / _LINEAR
"""Mels at 1000 Hz, above which the scale is logarithmic."""
_STEP = np.log(6.4) / 27.0
"""Natural logarithm of the ratio of two frequencies a mel apart, above 1000 Hz."""


def log_mel(samples: npt.NDArray[np.float32], hearing: Hearing) -> npt.NDArray[np.float32]:
    """The spectrogram ``[mels, frames]`` of some sound, step for step as the extractor makes it.

    torch's transform is the extractor's: any other one differs where a frame spans many orders of magnitude, since the
    rounding errors of single precision are what is heard there.
    """
    import torch

    window, filters = _tensors(hearing)
    if hearing.chunk:
        silence = min(hearing.chunk, -(-len(samples) // hearing.hop) * hearing.hop + 2 * hearing.fft) - len(samples)
        samples = np.pad(samples, (0, silence))
    waveform = torch.from_numpy(samples)[None]
    transformed = torch.stft(waveform, hearing.fft, hearing.hop, window=window, return_complex=True)
    power = (transformed[..., :-1].abs() ** 2).contiguous()
    spectrogram = (filters.T @ power).clamp(min=1e-10).log10()[0]
    return ((torch.maximum(spectrogram, spectrogram.max() - 8.0) + 4.0) / 4.0).numpy()


@cache
def _tensors(hearing: Hearing) -> tuple["Tensor", "Tensor"]:
    """Window and filters, once in a process."""
    import torch

    filters = mel_filters(hearing.mels, hearing.rate, hearing.fft)
    return torch.hann_window(hearing.fft), torch.from_numpy(filters).to(torch.float32)


def mel_filters(mels: int, rate: int, fft: int) -> npt.NDArray[np.float64]:
    """Triangular filters ``[fft // 2 + 1, mels]`` of equal area on the scale of Slaney's Auditory Toolbox."""
    highest = _KNEE + np.log(HIGHEST / 1000.0) / _STEP
    corners = _hertz(np.linspace(0.0, highest, mels + 2))
    bins = np.linspace(0.0, rate // 2, fft // 2 + 1)
    widths = np.diff(corners)
    slopes = corners - bins[:, None]
    triangles = np.maximum(0.0, np.minimum(-slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]))
    areas: npt.NDArray[np.float64] = triangles * (2.0 / (corners[2:] - corners[:-2]))
    return areas


def _hertz(mels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.where(mels < _KNEE, _LINEAR * mels, 1000.0 * np.exp(_STEP * (mels - _KNEE)))

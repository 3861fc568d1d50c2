"""From the bytes of a file to samples of one channel at the rate that a model hears."""

from dataclasses import dataclass
from io import BytesIO
from math import gcd
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from relax_core.api.array_file import is_array, read_array
from relax_core.api.media import MediaError

if TYPE_CHECKING:
    from soundfile import SoundFile

RATES = range(1000, 768_001)
"""Samples per second of files that are read."""
EXACT = frozenset({"WAV", "WAVEX", "RF64", "W64", "AIFF", "AU", "CAF", "FLAC"})
"""Containers whose headers say how many samples there are, where these are not compressed with losses."""
_CUT_OFF = "the file is cut off"


@dataclass(frozen=True)
class Limit:
    """How much is read.

    Args:
        seconds: The longest sound.
        cut: Whether longer sound ends there, or is refused.
    """

    seconds: float
    cut: bool

    def apply(self, samples: int, rate: int) -> int:
        """How many of some samples are read.

        Raises:
            MediaError: ``too_long``: they are more, and sound is not cut.
        """
        most = int(self.seconds * rate)
        if samples > most and not self.cut:
            raise MediaError("too_long", f"the sound is longer than {self.seconds:g} seconds")
        return min(samples, most)


def count_samples(data: bytes, rate: int, limit: Limit) -> int | None:
    """How many samples :func:`read_samples` would return; ``None`` where the header does not tell.

    Raises:
        MediaError: As :func:`read_samples`, as far as the header tells.
    """
    if is_array(data):
        return limit.apply(len(_channels(data)), rate)
    with _open(data) as file:
        if not _is_exact(file):
            return None
        return _resampled(limit.apply(file.frames, file.samplerate), file.samplerate, rate)


def read_samples(data: bytes, rate: int, limit: Limit) -> npt.NDArray[np.float32]:
    """Samples of one channel, the mean of all there are, between -1 and 1.

    Args:
        data: A file that libsndfile reads, or a ``.npy`` file: ``[samples]`` or ``[samples, channels]`` at ``rate``.
        rate: Samples per second.
        limit: How much is read.

    Raises:
        MediaError: ``damaged``, or ``too_long``.
    """
    if is_array(data):
        channels = _channels(data)
        channels = channels[: limit.apply(len(channels), rate)]
        if channels.dtype == np.int16:
            channels = channels.astype(np.float32) / 32768
        return _checked(channels.astype(np.float32))
    channels, file_rate = _read_file(data, limit)
    samples = _checked(channels)
    if file_rate == rate or not len(samples):
        return samples
    from scipy.signal import resample_poly

    common = gcd(rate, file_rate)
    resampled: npt.NDArray[np.float32] = resample_poly(samples, rate // common, file_rate // common)
    return resampled


def _resampled(samples: int, old: int, new: int) -> int:
    """Length of what ``scipy.signal.resample_poly`` returns."""
    return -(-samples * new // old)


def _channels(data: bytes) -> npt.NDArray[np.generic]:
    """An array's samples ``[samples, channels]``."""
    array = read_array(data)
    if array.ndim not in (1, 2) or (array.dtype.kind != "f" and array.dtype != np.int16):
        wanted = "[samples] or [samples, channels], float or int16"
        raise MediaError("damaged", f"the array is {array.dtype} {list(array.shape)}, sound is {wanted}")
    return array[:, None] if array.ndim == 1 else array


def _checked(channels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The mean of channels that are sound."""
    if not channels.shape[1]:
        raise MediaError("damaged", "there are no channels")
    samples = channels.mean(axis=1, dtype=np.float32)
    # A sample has no bound in a file of floats; beyond this the square of a sum of them has none either.
    if not (np.abs(samples) < 1e12).all():
        raise MediaError("damaged", "a sample is no number, or far too large")
    return samples


def _open(data: bytes) -> "SoundFile":
    """A file of which the header is sound."""
    import soundfile

    declared = int.from_bytes(data[4:8], "little") + 8
    # What is written to a pipe has the largest size in place of its own.
    if data[:4] == b"RIFF" and len(data) < declared < 2**31:
        raise MediaError("damaged", f"{_CUT_OFF}: {len(data)} of {declared} bytes")
    try:
        file = soundfile.SoundFile(BytesIO(data))
    except soundfile.SoundFileError as error:
        raise MediaError("damaged", f"not a sound file: {error}") from error
    if file.samplerate not in RATES:
        file.close()
        raise MediaError("damaged", f"{file.samplerate} samples per second are not between {RATES[0]} and {RATES[-1]}")
    return file


def _is_exact(file: "SoundFile") -> bool:
    stored = file.subtype.startswith("PCM_") or file.subtype in ("FLOAT", "DOUBLE")
    return file.format in EXACT and stored and file.frames < 2**40


def _read_file(data: bytes, limit: Limit) -> tuple[npt.NDArray[np.float32], int]:
    """Samples of all channels and their rate."""
    import soundfile

    with _open(data) as file:
        rate, exact = file.samplerate, _is_exact(file)
        wanted = limit.apply(file.frames, rate) if exact else int(limit.seconds * rate) + 1
        try:
            channels = file.read(wanted, dtype="float32", always_2d=True)
        except soundfile.SoundFileError as error:
            raise MediaError("damaged", f"{_CUT_OFF}, or wrong inside: {error}") from error
    if exact and len(channels) != wanted:
        raise MediaError("damaged", f"{_CUT_OFF}: {len(channels)} of {wanted} samples")
    return channels[: limit.apply(len(channels), rate)], rate

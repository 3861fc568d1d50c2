"""From the bytes of a file to frames of a video."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

import av
import numpy as np
import numpy.typing as npt

from relax_core.api.media import MediaError

Frame = npt.NDArray[np.uint8]
"""``[height, width, 3]``: red, green and blue."""

FORMATS: Final = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,gif,apng,mpegts,mpeg,ogg,flv"
"""Containers that are read, as FFmpeg calls them; others name files and hosts that it would open."""

_OPTIONS: Final = {"format_whitelist": FORMATS, "protocol_whitelist": "none", "ignore_editlist": "1"}
_DECODERS_RAISE: Final = (av.FFmpegError, OSError, ValueError, ArithmeticError)


@dataclass(frozen=True)
class Clip:
    """What a file says of its video.

    Args:
        frames: How many there are, 0 where it does not say.
        rate: How many there are in a second.
        height: Pixels of an upright frame.
        width: Likewise.
    """

    frames: int
    rate: float
    height: int
    width: int


def clip_of(data: bytes, max_pixels: int) -> Clip:
    """What a file says of its video, of which the first frame is decoded.

    Raises:
        MediaError: ``damaged``, ``empty`` or ``too_large``.
    """
    with _opened(data, max_pixels) as container:
        stream = container.streams.video[0]
        rate = stream.average_rate or stream.guessed_rate
        if not rate or rate <= 0:
            raise MediaError("damaged", "the video does not say how many frames a second has")
        first = next(_decoded(container, max_pixels), None)
        if first is None:
            raise MediaError("empty", "there is no frame in the video")
        return Clip(max(stream.frames, 0), float(rate), *first.shape[:2])


def frames_of(data: bytes, max_pixels: int) -> Iterator[Frame]:
    """All frames of a video in order, upright; errors as of :func:`clip_of`."""
    with _opened(data, max_pixels) as container:
        yield from _decoded(container, max_pixels)


@contextmanager
def _opened(data: bytes, max_pixels: int) -> Iterator[Any]:
    """A file of which the header has been read; what its decoder raises within the block is told as damage."""
    if not data:
        raise MediaError("empty", "the file is empty")
    try:
        with av.open(BytesIO(data), options=_OPTIONS) as container:
            if not container.streams.video:
                raise MediaError("empty", "there is no video in the file")
            context = container.streams.video[0].codec_context
            if context is None:
                raise MediaError("damaged", "the video is of a kind that cannot be decoded here")
            _check_size(context.width, context.height, max_pixels)
            context.thread_count = 1  # so that damage shows in the same frame each time
            yield container
    except MediaError:
        raise
    except _DECODERS_RAISE as error:
        raise MediaError("damaged", f"the video cannot be decoded: {error}") from error


def _decoded(container: Any, max_pixels: int) -> Iterator[Frame]:
    for frame in container.decode(container.streams.video[0]):
        if frame.is_corrupt:
            raise MediaError("damaged", "a frame of the video is incomplete")
        _check_size(frame.width, frame.height, max_pixels)
        yield np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90)


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise MediaError("too_large", f"{width} x {height} pixels are more than max_pixels, which is {max_pixels}")

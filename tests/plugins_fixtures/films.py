"""Videos of every sort, as the bytes of files."""

from io import BytesIO
from typing import Any

import av
import numpy as np
import numpy.typing as npt

CODECS = {"mp4": "libx264", "webm": "libvpx", "avi": "mpeg4", "gif": "gif", "mpegts": "mpeg2video", "mov": "libx264"}
FORMATS = {"gif": "rgb8"}


def film(frames: int, width: int = 64, height: int = 48, seed: int = 0) -> npt.NDArray[np.uint8]:
    """``[frames, height, width, 3]``: a slope of colours that moves."""
    start = np.random.default_rng(seed).integers(0, 200)
    slope = np.add.outer(np.arange(height), np.arange(width))[None, :, :, None] + np.array([0, 60, 120])
    return ((slope + start + 9 * np.arange(frames)[:, None, None, None]) % 256).astype(np.uint8)


def film_file(
    frames: npt.NDArray[np.uint8], container: str = "mp4", rate: int = 8, sound: bool = False, **options: str
) -> bytes:
    """A file's bytes; with ``options`` of the container."""
    file = BytesIO()
    with av.open(file, "w", format=container, options=options) as output:
        stream: Any = output.add_stream(CODECS[container], rate=rate)
        stream.width, stream.height = frames.shape[2], frames.shape[1]
        stream.pix_fmt = FORMATS.get(container, "yuv420p")
        stream.codec_context.thread_count = 1
        heard: Any = output.add_stream("aac", rate=16_000) if sound else None
        for frame in frames:
            output.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        output.mux(stream.encode(None))
        if heard is not None:
            silence = av.AudioFrame.from_ndarray(np.zeros((1, 16_000), np.float32), format="fltp", layout="mono")
            silence.sample_rate = 16_000
            output.mux(heard.encode(silence))
            output.mux(heard.encode(None))
    return file.getvalue()

"""Which frames of a video a model sees, and how large."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from relax_core.api.columns import IntArray
from relax_core.api.context import ModelSource
from relax_core.api.model_files import preprocessor_config
from relax_vision.config import VideoEncoderConfig
from relax_vision.patching import Patching, limit, read_patching, refuse_crossed
from relax_vision.sight import refuse_elongated, smart_resize

MIN_TOKENS, MAX_TOKENS = 128, 768
"""Placeholders of a frame where nobody says a limit; ``VIDEO_MIN_TOKEN_NUM`` and ``VIDEO_MAX_TOKEN_NUM`` of
qwen-vl-utils, whose limits transformers' ``cap_pixels_per_frame`` has, too."""

WHOLE_TOKENS = 115_200
"""Placeholders of all frames, at most, of models that are not told the time; 0.9 of a context of 128,000, as there."""

MARGIN: Final = 1.05
"""The most pixels of a frame are at least so many times the least; as there."""

TOLD_TIME: Final = frozenset({"qwen3_vl", "qwen3_vl_moe"})
"""Models that read the time in front of the frames; others have it in the positions of their placeholders."""

SECONDS: Final[Mapping[str, str]] = {
    "qwen2_5_vl": "second_per_grid_ts",
    "qwen2_5_omni_thinker": "video_second_per_grid",
    "qwen3_omni_moe_thinker": "video_second_per_grid",
}
"""What they call the seconds between patches; Qwen2-VL knows no time."""


@dataclass(frozen=True)
class Viewing:
    """How a model sees a video. As many frames as a patch has, mostly two, share their placeholders.

    Args:
        patching: How it cuts them.
        seconds: What the seconds between patches are called, if the model asks for them.
        is_told_time: Whether the time stands in front of them. Then ``max_pixels`` is of all frames together, and so is
            ``min_pixels``, unless ``is_least_of_each``.
        fps: Frames of a second that are seen.
        min_frames: Of a short video, as far as it has them.
        max_frames: Of a long one.
        min_pixels: Smaller frames are enlarged.
        max_pixels: Larger frames are reduced.
        is_least_of_each: Whether ``min_pixels`` is of each frame.
        most_of_each: Pixels of a frame, of however few.
    """

    patching: Patching
    seconds: str | None
    is_told_time: bool
    fps: float
    min_frames: int
    max_frames: int
    min_pixels: int
    max_pixels: int
    is_least_of_each: bool
    most_of_each: int

    def chosen(self, total: int, rate: float) -> IntArray:
        """int64: which frames are seen of a video that has so many, at least one, and so many in a second:
        ``sample_frames`` of transformers' video processors."""
        wanted = total / rate * self.fps
        if self.is_told_time:
            number = min(max(int(wanted), self.min_frames), self.max_frames, total)
            return np.linspace(0, total - 1, number).round().astype(np.int64)
        together = self.patching.frames
        whole = min(max(wanted, self.min_frames), min(self.max_frames, total) // together * together)
        number = max(math.floor(whole / together) * together, 1)  # of a single frame transformers sees none
        return (np.arange(number) * (total / number)).astype(np.float32).astype(np.int64)

    def resized(self, frames: int, height: int, width: int) -> tuple[int, int]:
        """Height and width at which so many frames are seen: ``resize`` of transformers' video processors, with
        ``cap_pixels_per_frame``.

        Raises:
            MediaError: ``too_long``: one side is more than 200 times the other.
        """
        frames = max(frames, self.patching.frames)
        least = int(self.min_pixels * MARGIN)
        if self.is_told_time:
            most = max(min(self.most_of_each, self.max_pixels // frames), least)
            return self._resized_together(frames, height, width, most * frames)
        shared = WHOLE_TOKENS * self.patching.place**2 * self.patching.frames // frames
        most = max(min(self.most_of_each, shared), least)
        return smart_resize(height, width, self.patching.place, self.min_pixels, most)

    def _resized_together(self, frames: int, height: int, width: int, most: int) -> tuple[int, int]:
        """``smart_resize`` of transformers' video_processing_qwen3_vl."""
        multiple, least = self.patching.place, self.min_pixels * (frames if self.is_least_of_each else 1)
        if min(height, width) < multiple:
            scale = max(multiple / height, multiple / width)
            height, width = int(height * scale), int(width * scale)
        refuse_elongated(height, width)
        sides = [round(side / multiple) * multiple for side in (height, width)]
        together = round(frames / self.patching.frames) * self.patching.frames * math.prod(sides)
        if together > most:
            ratio = math.sqrt(frames * height * width / most)
            sides = [max(multiple, math.floor(side / ratio / multiple) * multiple) for side in (height, width)]
        elif together < least:
            ratio = math.sqrt(least / (frames * height * width))
            sides = [math.ceil(side * ratio / multiple) * multiple for side in (height, width)]
        return sides[0], sides[1]


def read_viewing(source: ModelSource | None, settings: VideoEncoderConfig) -> Viewing:
    """What the folder of a model says, and the settings over it.

    Raises:
        ConfigError: The model does not see, or in a way that is not known here, or the settings do not suit it.
    """
    model_type, patching = read_patching(source, "video", "video_processor")
    assert source is not None
    processor, pixels = preprocessor_config(source, "video_processor"), patching.place**2
    is_told_time = model_type in TOLD_TIME
    fewest = limit(processor, "min_pixels", "shortest_edge") or MIN_TOKENS * pixels
    most = limit(processor, "max_pixels", "longest_edge") or MAX_TOKENS * pixels
    most_of_each = MAX_TOKENS * pixels if is_told_time else most
    if settings.min_tokens:
        fewest = settings.min_tokens * pixels
    if settings.max_tokens:
        most_of_each = settings.max_tokens * pixels
    refuse_crossed("video", "frame", settings, fewest / pixels, most_of_each / pixels)
    return Viewing(
        patching=patching,
        seconds=SECONDS.get(model_type),
        is_told_time=is_told_time,
        fps=settings.fps,
        min_frames=settings.min_frames,
        max_frames=settings.max_frames,
        min_pixels=fewest,
        max_pixels=most,
        is_least_of_each=settings.min_tokens is not None,
        most_of_each=most_of_each,
    )

"""The encoder of videos: some of the frames, as the patches that a Qwen-VL model sees."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from relax_core.api.array_file import is_array, read_array
from relax_core.api.columns import IntArray
from relax_core.api.context import Context
from relax_core.api.encoder import Encoder
from relax_core.api.media import Encoded, Kind, MediaError
from relax_vision.clip import Clip, Frame, clip_of, frames_of
from relax_vision.config import VideoEncoderConfig
from relax_vision.patching import Pixels
from relax_vision.viewing import read_viewing

if TYPE_CHECKING:
    from torch import Tensor

VERSION = 1
"""Counted up when the same video becomes other patches."""


class VideoEncoder(Encoder):
    """Carries ``patches`` uint8 ``[patches, 3, frames, patch, patch]``, resized, in the order of the model's
    placeholders, ``grid`` int64 ``[3]``: patches in time, rows and columns, and ``seconds`` float32: from one patch in
    time to the next.

    Inputs are those of transformers' ``Qwen2VLVideoProcessor`` and ``Qwen3VLVideoProcessor``, with
    ``cap_pixels_per_frame``; the sound of a video is not heard.

    Raises:
        ConfigError: The model does not see, or the settings do not suit it.
    """

    name: ClassVar[str] = "video"
    kinds: ClassVar[frozenset[Kind]] = frozenset({"video"})

    def __init__(self, config: VideoEncoderConfig, context: Context) -> None:
        self._config = config
        self._viewing = read_viewing(context.model, config)

    @property
    def fingerprint(self) -> str:
        """See :attr:`Encoder.fingerprint`."""
        return json.dumps([self.name, VERSION, self._config.max_pixels, asdict(self._viewing)])

    def layout(self, kind: Kind, data: bytes) -> tuple[int | str, ...] | None:
        """See :meth:`Encoder.layout`; ``None`` where the container does not say how many frames there are."""
        clip, _ = self._opened(data)
        if not clip.frames:
            return None
        chosen = self._chosen(clip, data)
        height, width = self._viewing.resized(len(chosen), clip.height, clip.width)
        return self._laid_out(chosen, clip.rate, height, width)

    def encode(self, kind: Kind, data: bytes) -> Encoded:
        """See :meth:`Encoder.encode`; an array is ``[frames, height, width, 3]`` uint8, at ``fps``."""
        viewing = self._viewing
        clip, frames = self._opened(data)
        if not clip.frames:
            clip = Clip(sum(1 for _ in frames), clip.rate, clip.height, clip.width)
            _, frames = self._opened(data)
        chosen = self._chosen(clip, data)
        height, width = viewing.resized(len(chosen), clip.height, clip.width)
        pixels = np.stack([_resized(frame, height, width) for frame in _picked(frames, chosen, clip.frames)])
        missing = -len(pixels) % viewing.patching.frames
        pixels = np.concatenate([pixels, *[pixels[-1:]] * missing])
        arrays: dict[str, npt.NDArray[np.generic]] = {
            "patches": viewing.patching.cut(pixels, viewing.patching.frames),
            "grid": np.array([len(pixels) // viewing.patching.frames, *self._grid(height, width)], np.int64),
            "seconds": np.array([viewing.patching.frames * clip.frames / clip.rate / len(chosen)], np.float32),
        }
        return Encoded(kind, self.name, self._laid_out(chosen, clip.rate, height, width), arrays)

    def inputs(self, media: Sequence[Encoded], device: Any) -> Mapping[str, "Tensor"]:
        """``pixel_values_videos`` ``[patches, 3 * frames * patch * patch]`` of all videos, ``video_grid_thw``, and the
        seconds between patches, for models that are not told the time."""
        import torch

        seen = self._viewing.patching.seen(np.concatenate([medium.arrays["patches"] for medium in media]), device)
        grids = torch.from_numpy(np.stack([medium.arrays["grid"] for medium in media])).to(device)
        inputs = {"pixel_values_videos": seen, "video_grid_thw": grids}
        if self._viewing.seconds is not None:
            seconds = np.concatenate([medium.arrays["seconds"] for medium in media])
            inputs[self._viewing.seconds] = torch.from_numpy(seconds).to(device)
        return inputs

    def _opened(self, data: bytes) -> tuple[Clip, Iterator[Frame]]:
        """What a file says, and its frames."""
        most = self._config.max_pixels
        if not is_array(data):
            return clip_of(data, most), frames_of(data, most)
        frames = _array(data, most)
        return Clip(len(frames), self._config.fps, *frames.shape[1:3]), iter(frames)

    def _chosen(self, clip: Clip, data: bytes) -> IntArray:
        """Which frames are seen; all of an array."""
        if not is_array(data):
            return self._viewing.chosen(clip.frames, clip.rate)
        if clip.frames > self._config.max_frames:
            raise MediaError("too_long", f"{clip.frames} frames are more than max_frames {self._config.max_frames}")
        return np.arange(clip.frames)

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        return height // self._viewing.patching.patch, width // self._viewing.patching.patch

    def _laid_out(self, chosen: IntArray, rate: float, height: int, width: int) -> tuple[int | str, ...]:
        """Placeholders of all frames in a row, or those that share them, each after its time."""
        together, place = self._viewing.patching.frames, self._viewing.patching.place
        places = (height // place) * (width // place)
        times = np.append(chosen, [chosen[-1]] * (-len(chosen) % together)).reshape(-1, together) / rate
        if not self._viewing.is_told_time:
            return (len(times) * places,)
        layout: list[int | str] = []
        for first, last in times[:, [0, -1]].tolist():
            layout += [f"<{(first + last) / 2:.1f} seconds>", places]
        return tuple(layout)


def _picked(frames: Iterator[Frame], chosen: IntArray, total: int) -> Iterator[Frame]:
    """Those at some places, in order."""
    wanted = iter(chosen.tolist())
    place = next(wanted)
    for number, frame in enumerate(frames):
        while number == place:
            yield frame
            place = next(wanted, -1)
        if place < 0:
            return
    raise MediaError("damaged", f"the video says that it has {total} frames, and has no frame {place}")


def _resized(frame: Frame, height: int, width: int) -> Pixels:
    """What torchvision's bicubic ``resize`` makes of a frame, with antialiasing."""
    import torch

    if frame.shape[:2] == (height, width):
        return frame
    image = torch.from_numpy(np.ascontiguousarray(frame)).permute(2, 0, 1)[None]
    scaled = torch.nn.functional.interpolate(image, (height, width), mode="bicubic", antialias=True)
    pixels: Pixels = scaled[0].permute(1, 2, 0).numpy()
    return pixels


def _array(data: bytes, max_pixels: int) -> Pixels:
    array = read_array(data)
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3:
        wanted = "[frames, height, width, 3], uint8"
        raise MediaError("damaged", f"the array is {array.dtype} {list(array.shape)}, a video is {wanted}")
    if not array.size:
        raise MediaError("empty", f"the array is {list(array.shape)}")
    if array.shape[1] * array.shape[2] > max_pixels:
        raise MediaError(
            "too_large", f"frames of {list(array.shape[1:3])} pixels are more than max_pixels {max_pixels}"
        )
    return array

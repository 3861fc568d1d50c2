"""How large images are to a model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relax_core.api.context import ModelSource
from relax_core.api.errors import ConfigError
from relax_core.api.media import MediaError
from relax_core.api.model_files import preprocessor_config
from relax_vision.config import VisionEncoderConfig
from relax_vision.patching import Patching, limit, read_patching, refuse_crossed

MIN_TOKENS, MAX_TOKENS = 4, 1280
"""Limits where nobody says any; those of Qwen2-VL's processor."""
MOST_ELONGATED = 200
"""Sides of an image in whose ratio Qwen's processors refuse it."""


@dataclass(frozen=True)
class Sight:
    """How a model sees an image.

    Args:
        patching: How it cuts it.
        multiple: Sides of an image are multiples of it.
        min_pixels: Smaller images are enlarged.
        max_pixels: Larger images are reduced.
    """

    patching: Patching
    multiple: int
    min_pixels: int
    max_pixels: int

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Height and width at which an image is seen; see :func:`smart_resize`."""
        return smart_resize(height, width, self.multiple, self.min_pixels, self.max_pixels)

    def places(self, height: int, width: int) -> int:
        """Features that the model makes of an image of such a size."""
        return math.prod(side // self.patching.place for side in self.resized(height, width))


def smart_resize(height: int, width: int, multiple: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Height and width within limits, as multiples: ``smart_resize`` of transformers' image_processing_qwen2_vl.

    Raises:
        MediaError: ``too_long``: one side is more than 200 times the other.
    """
    refuse_elongated(height, width)
    sides = [round(side / multiple) * multiple for side in (height, width)]
    if math.prod(sides) > max_pixels:
        ratio = math.sqrt(height * width / max_pixels)
        sides = [max(multiple, math.floor(side / ratio / multiple) * multiple) for side in (height, width)]
    elif math.prod(sides) < min_pixels:
        ratio = math.sqrt(min_pixels / (height * width))
        sides = [math.ceil(side * ratio / multiple) * multiple for side in (height, width)]
    return sides[0], sides[1]


def refuse_elongated(height: int, width: int) -> None:
    """``MediaError`` where one side is more than 200 times the other."""
    if max(height, width) > MOST_ELONGATED * min(height, width):
        raise MediaError("too_long", f"{width} x {height} pixels: a side is over {MOST_ELONGATED} times the other")


def read_sight(source: ModelSource | None, settings: VisionEncoderConfig) -> Sight:
    """What the folder of a model says, and the settings over it.

    Raises:
        ConfigError: The model does not see, or in a way that is not known here, or the settings do not suit it.
    """
    _, patching = read_patching(source, "vision", "image_processor")
    assert source is not None
    multiple = settings.multiple or patching.place
    if multiple % patching.place:
        nearest = max(round(multiple / patching.place), 1) * patching.place
        raise ConfigError(
            f"encoders: vision: multiple {multiple}: a placeholder of this model is {patching.place} pixels wide; "
            f"did you mean {nearest}?"
        )
    processor = preprocessor_config(source, "image_processor")
    fewest, most = _limits(processor, settings, patching.place**2)
    return Sight(patching, multiple, fewest, most)


def _limits(processor: Mapping[str, Any], settings: VisionEncoderConfig, pixels: int) -> tuple[int, int]:
    """The least and the most pixels of an image; a placeholder stands for ``pixels``."""
    fewest = limit(processor, "min_pixels", "shortest_edge") or MIN_TOKENS * pixels
    most = limit(processor, "max_pixels", "longest_edge") or MAX_TOKENS * pixels
    fewest = settings.min_tokens * pixels if settings.min_tokens else fewest
    most = settings.max_tokens * pixels if settings.max_tokens else most
    refuse_crossed("vision", "image", settings, fewest / pixels, most / pixels)
    return fewest, most

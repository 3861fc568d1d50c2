"""What a model sees: how images are resized, cut into patches and normalised for it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from relax_core.api.context import ModelSource
from relax_core.api.errors import ConfigError
from relax_core.api.media import MediaError
from relax_core.api.model_files import preprocessor_config, tower_config
from relax_vision.config import VisionEncoderConfig

Colours = tuple[float, float, float]

MIN_TOKENS, MAX_TOKENS = 4, 1280
"""Limits where nobody says any; those of Qwen2-VL's processor."""
MOST_ELONGATED = 200
"""Sides of an image in whose ratio Qwen's processors refuse it."""


@dataclass(frozen=True)
class _Family:
    """What models of a kind have where their folder does not say it; of transformers' classes and Qwen's checkpoints.

    Args:
        patch: Pixels of a patch's side.
        mean: Of the colours red, green and blue, between 0 and 1.
        std: Their standard deviation.
    """

    patch: int
    mean: Colours
    std: Colours


_SECOND = _Family(14, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_THIRD = _Family(16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_FAMILIES: Final[Mapping[str, _Family]] = {
    "qwen2_vl": _SECOND,
    "qwen2_5_vl": _SECOND,
    "qwen2_5_omni_thinker": _SECOND,
    "qwen3_vl": _THIRD,
    "qwen3_vl_moe": _THIRD,
    "qwen3_omni_moe_thinker": _THIRD,
}


@dataclass(frozen=True)
class Sight:
    """How a model sees.

    Args:
        patch: Pixels of a patch's side.
        merge: Patches of a placeholder's side.
        frames: Images of a patch: a still one is given so many times.
        multiple: Sides of an image are multiples of it.
        min_pixels: Smaller images are enlarged.
        max_pixels: Larger images are reduced.
        white: The largest value of a pixel; the smallest is 0.
        mean: Of the colours red, green and blue, where ``white`` is 1.
        std: Their standard deviation.
    """

    patch: int
    merge: int
    frames: int
    multiple: int
    min_pixels: int
    max_pixels: int
    white: float
    mean: Colours
    std: Colours

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Height and width at which an image is seen: ``smart_resize`` of transformers' image_processing_qwen2_vl.

        Raises:
            MediaError: ``too_long``: one side is more than 200 times the other.
        """
        if max(height, width) > MOST_ELONGATED * min(height, width):
            raise MediaError("too_long", f"{width} x {height} pixels: a side is over {MOST_ELONGATED} times the other")
        multiple = self.multiple
        sides = [round(side / multiple) * multiple for side in (height, width)]
        if math.prod(sides) > self.max_pixels:
            ratio = math.sqrt(height * width / self.max_pixels)
            sides = [max(multiple, math.floor(side / ratio / multiple) * multiple) for side in (height, width)]
        elif math.prod(sides) < self.min_pixels:
            ratio = math.sqrt(self.min_pixels / (height * width))
            sides = [math.ceil(side * ratio / multiple) * multiple for side in (height, width)]
        return sides[0], sides[1]

    def places(self, height: int, width: int) -> int:
        """Features that the model makes of an image of such a size."""
        return math.prod(side // (self.patch * self.merge) for side in self.resized(height, width))


def read_sight(source: ModelSource | None, settings: VisionEncoderConfig) -> Sight:
    """What the folder of a model says, and the settings over it.

    Raises:
        ConfigError: The model does not see, or in a way that is not known here, or the settings do not suit it.
    """
    if source is None:
        raise ConfigError("encoders: vision needs a model")
    model_type, vision = tower_config(source, "vision", "see", _FAMILIES)
    family = _FAMILIES[model_type]
    processor = preprocessor_config(source, "image_processor")
    patch, merge = vision.get("patch_size", family.patch), vision.get("spatial_merge_size", 2)
    place = patch * merge
    multiple = settings.multiple or place
    if multiple % place:
        nearest = max(round(multiple / place), 1) * place
        raise ConfigError(
            f"encoders: vision: multiple {multiple}: a placeholder of this model is {place} pixels wide; "
            f"did you mean {nearest}?"
        )
    fewest, most = _limits(processor, settings, place**2)
    return Sight(
        patch=patch,
        merge=merge,
        frames=vision.get("temporal_patch_size", 2),
        multiple=multiple,
        min_pixels=fewest,
        max_pixels=most,
        white=1 / processor.get("rescale_factor", 1 / 255),
        mean=tuple(processor.get("image_mean", family.mean)),
        std=tuple(processor.get("image_std", family.std)),
    )


def _limits(processor: Mapping[str, Any], settings: VisionEncoderConfig, pixels: int) -> tuple[int, int]:
    """The least and the most pixels of an image; a placeholder stands for ``pixels``."""
    size = processor.get("size") or {}
    fewest = processor.get("min_pixels") or size.get("shortest_edge") or MIN_TOKENS * pixels
    most = processor.get("max_pixels") or size.get("longest_edge") or MAX_TOKENS * pixels
    fewest = settings.min_tokens * pixels if settings.min_tokens else fewest
    most = settings.max_tokens * pixels if settings.max_tokens else most
    if fewest > most:
        key = "min_tokens" if settings.min_tokens else "max_tokens"
        raise ConfigError(
            f"encoders: vision: {key} {getattr(settings, key)}: the smallest image would have {fewest / pixels:g} "
            f"placeholders and the largest {most / pixels:g}; the model's folder says the other limit"
        )
    return fewest, most

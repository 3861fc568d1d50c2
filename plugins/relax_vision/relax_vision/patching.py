"""What a model sees of pixels: patches, in the order of its placeholders, and colours around zero."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from relax_core.api.context import ModelSource
from relax_core.api.errors import ConfigError
from relax_core.api.model_files import preprocessor_config, tower_config
from relax_vision.config import Limits

if TYPE_CHECKING:
    from torch import Tensor

Colours = tuple[float, float, float]
Pixels = npt.NDArray[np.uint8]


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
class Patching:
    """How a model cuts what it sees.

    Args:
        patch: Pixels of a patch's side.
        merge: Patches of a placeholder's side.
        frames: Images of a patch: a still one is given so many times.
        white: The largest value of a pixel; the smallest is 0.
        mean: Of the colours red, green and blue, where ``white`` is 1.
        std: Their standard deviation.
    """

    patch: int
    merge: int
    frames: int
    white: float
    mean: Colours
    std: Colours

    @property
    def place(self) -> int:
        """Pixels of a placeholder's side."""
        return self.patch * self.merge

    def cut(self, pixels: Pixels, frames: int) -> Pixels:
        """Images ``[images, height, width, 3]`` as ``[patches, 3, frames, patch, patch]``: so many images make a patch,
        and those of a placeholder follow one another."""
        images, height, width, _ = pixels.shape
        rows, columns = height // self.place, width // self.place
        shape = images // frames, frames, rows, self.merge, self.patch, columns, self.merge, self.patch, 3
        in_order = pixels.reshape(shape).transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
        return in_order.reshape(-1, 3, frames, self.patch, self.patch)

    def seen(self, patches: Pixels, device: Any) -> "Tensor":
        """float32 ``[patches, 3 * frames * patch * patch]``, of ``[patches, 3, frames or 1, patch, patch]``."""
        import torch

        mean, std = (torch.tensor(colours, device=device)[:, None, None, None] for colours in (self.mean, self.std))
        # Divided, and not multiplied by its inverse: single precision then rounds as transformers' double does.
        pixels = torch.from_numpy(patches).to(device).float().div_(self.white).sub_(mean).div_(std)
        return pixels.expand(-1, -1, self.frames, -1, -1).reshape(len(pixels), -1)


def read_patching(source: ModelSource | None, encoder: str, part: str) -> tuple[str, Patching]:
    """The type of a model, and what its folder says of how it sees.

    Args:
        source: The model.
        encoder: Named in errors.
        part: Of transformers' processor, whose colours count; those of images where it has none.

    Raises:
        ConfigError: The model does not see, or in a way that is not known here.
    """
    if source is None:
        raise ConfigError(f"encoders: {encoder} needs a model")
    model_type, vision = tower_config(source, "vision", "see", _FAMILIES)
    family = _FAMILIES[model_type]
    processor = {**preprocessor_config(source, "image_processor"), **preprocessor_config(source, part)}
    patching = Patching(
        patch=vision.get("patch_size", family.patch),
        merge=vision.get("spatial_merge_size", 2),
        frames=vision.get("temporal_patch_size", 2),
        white=1 / processor.get("rescale_factor", 1 / 255),
        mean=tuple(processor.get("image_mean", family.mean)),
        std=tuple(processor.get("image_std", family.std)),
    )
    return model_type, patching


def limit(processor: Mapping[str, Any], key: str, edge: str) -> int | None:
    """Pixels that a processor's settings name, in either of two ways."""
    size = processor.get("size") or {}
    return processor.get(key) or size.get(edge)


def refuse_crossed(encoder: str, what: str, settings: Limits, fewest: float, most: float) -> None:
    """``ConfigError`` where the limit of a setting lies beyond the other one, which the model's folder says."""
    if fewest > most:
        key = "min_tokens" if settings.min_tokens else "max_tokens"
        raise ConfigError(
            f"encoders: {encoder}: {key} {getattr(settings, key)}: the smallest {what} would have {fewest:g} "
            f"placeholders and the largest {most:g}; the model's folder says the other limit"
        )

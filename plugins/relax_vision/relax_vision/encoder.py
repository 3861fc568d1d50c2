"""The encoder: images as the patches that a Qwen-VL model sees."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from relax_core.api.context import Context
from relax_core.api.encoder import Encoder
from relax_core.api.media import Encoded, Kind
from relax_vision.config import VisionEncoderConfig
from relax_vision.picture import decode, size_of
from relax_vision.sight import Sight, read_sight

if TYPE_CHECKING:
    from torch import Tensor

VERSION = 1
"""Counted up when the same image becomes other patches."""


class VisionEncoder(Encoder):
    """Carries ``pixels`` uint8 ``[patches, 3, patch, patch]``, resized, in the order of the model's placeholders, and
    ``grid`` int64 ``[3]``: frames, rows and columns of patches.

    Inputs are those of transformers' ``Qwen2VLImageProcessorPil``.

    Raises:
        ConfigError: The model does not see, or the settings do not suit it.
    """

    name: ClassVar[str] = "vision"
    kinds: ClassVar[frozenset[Kind]] = frozenset({"image"})

    def __init__(self, config: VisionEncoderConfig, context: Context) -> None:
        self._config = config
        self._sight = read_sight(context.model, config)

    @property
    def fingerprint(self) -> str:
        """See :attr:`Encoder.fingerprint`."""
        return json.dumps([self.name, VERSION, self._config.max_pixels, asdict(self._sight)])

    def layout(self, kind: Kind, data: bytes) -> tuple[int | str, ...]:
        """See :meth:`Encoder.layout`."""
        return (self._sight.places(*size_of(data, self._config.max_pixels)),)

    def encode(self, kind: Kind, data: bytes) -> Encoded:
        """See :meth:`Encoder.encode`."""
        sight, image = self._sight, decode(data, self._config.max_pixels)
        height, width = sight.resized(image.height, image.width)
        seen = patches(np.asarray(image.resize((width, height), Image.Resampling.BICUBIC)), sight)
        grid = np.array([1, height // sight.patch, width // sight.patch], dtype=np.int64)
        return Encoded(kind, self.name, (len(seen) // sight.merge**2,), {"pixels": seen, "grid": grid})

    def inputs(self, media: Sequence[Encoded], device: Any) -> Mapping[str, "Tensor"]:
        """``pixel_values`` ``[patches, 3 * frames * patch * patch]`` of all images, and ``image_grid_thw``."""
        import torch

        pixels = torch.from_numpy(np.concatenate([medium.arrays["pixels"] for medium in media])).to(device)
        sight = self._sight
        mean, std = (torch.tensor(colours, device=device)[:, None, None] for colours in (sight.mean, sight.std))
        # Divided, and not multiplied by its inverse: single precision then rounds as transformers' double does.
        seen = pixels.float().div_(sight.white).sub_(mean).div_(std)
        frames = seen[:, :, None].expand(-1, -1, sight.frames, -1, -1)
        grids = torch.from_numpy(np.stack([medium.arrays["grid"] for medium in media])).to(device)
        return {"pixel_values": frames.reshape(len(seen), -1), "image_grid_thw": grids}


def patches(pixels: npt.NDArray[np.uint8], sight: Sight) -> npt.NDArray[np.uint8]:
    """An image ``[height, width, 3]`` as ``[patches, 3, patch, patch]``: those of a placeholder follow one another."""
    rows, columns = (side // (sight.patch * sight.merge) for side in pixels.shape[:2])
    cut = pixels.reshape(rows, sight.merge, sight.patch, columns, sight.merge, sight.patch, 3)
    in_order = cut.transpose(0, 3, 1, 4, 6, 2, 5)
    return in_order.reshape(-1, 3, sight.patch, sight.patch)

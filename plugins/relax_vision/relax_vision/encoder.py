"""The encoder: images as the patches that a Qwen-VL model sees."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from PIL import Image

from relax_core.api.context import Context
from relax_core.api.encoder import Encoder
from relax_core.api.media import Encoded, Kind
from relax_vision.config import VisionEncoderConfig
from relax_vision.picture import decode, size_of
from relax_vision.sight import read_sight

if TYPE_CHECKING:
    from torch import Tensor

VERSION = 2
"""Counted up when the same image becomes other patches."""


class VisionEncoder(Encoder):
    """Carries ``patches`` uint8 ``[patches, 3, 1, patch, patch]``, resized, in the order of the model's placeholders,
    and ``grid`` int64 ``[3]``: frames, rows and columns of patches.

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
        patching, image = self._sight.patching, decode(data, self._config.max_pixels)
        height, width = self._sight.resized(image.height, image.width)
        pixels = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
        patches = patching.cut(pixels[None], 1)
        grid = np.array([1, height // patching.patch, width // patching.patch], np.int64)
        return Encoded(kind, self.name, (len(patches) // patching.merge**2,), {"patches": patches, "grid": grid})

    def inputs(self, media: Sequence[Encoded], device: Any) -> Mapping[str, "Tensor"]:
        """``pixel_values`` ``[patches, 3 * frames * patch * patch]`` of all images, and ``image_grid_thw``."""
        import torch

        seen = self._sight.patching.seen(np.concatenate([medium.arrays["patches"] for medium in media]), device)
        grids = torch.from_numpy(np.stack([medium.arrays["grid"] for medium in media])).to(device)
        return {"pixel_values": seen, "image_grid_thw": grids}

"""Images of every sort, as the bytes of files."""

from io import BytesIO
from typing import Any

import numpy as np
from PIL import ExifTags, Image


def picture(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Noise over a slope of colours, in any mode of Pillow; 16 bits in ``I;16``."""
    draw = np.random.default_rng(seed)
    slope = np.add.outer(np.linspace(0, 120, height), np.linspace(0, 90, width))[:, :, None]
    pixels = (slope + draw.integers(0, 45, (height, width, 3))).astype(np.uint8)
    if mode == "I;16":
        return Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 257)
    image = Image.fromarray(pixels)
    if mode in ("RGBA", "LA"):
        image.putalpha(Image.fromarray(pixels[::-1, :, 0].copy()))
    return image.convert(mode)


def image_file(image: Image.Image, container: str = "PNG", orientation: int = 1, **options: Any) -> bytes:
    """A file's bytes; with another orientation it says so in EXIF."""
    if orientation != 1:
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        options["exif"] = exif
    file = BytesIO()
    image.save(file, container, **options)
    return file.getvalue()

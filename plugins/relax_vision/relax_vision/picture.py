"""From the bytes of a file to the pixels of one upright image."""

from io import BytesIO
from typing import Final

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from relax_core.api.array_file import is_array, read_array
from relax_core.api.media import MediaError

FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "PPM", "AVIF")
"""Formats that are read; Pillow knows others, some of which start programs."""

_ON_ITS_SIDE: Final = range(5, 9)
"""Orientations of EXIF in which height and width are exchanged."""
_LATE: Final = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")
"""What a PNG may have behind its pixels and that tells an orientation."""


def size_of(data: bytes, max_pixels: int) -> tuple[int, int]:
    """Height and width of what :func:`decode` would return, from the header of a file.

    Raises:
        MediaError: As :func:`decode`, as far as the header tells.
    """
    if is_array(data):
        return _array(data, max_pixels).size[::-1]
    with _open(data, max_pixels) as image:
        width, height = image.size
        return (width, height) if _orientation(image, data) in _ON_ITS_SIDE else (height, width)


def decode(data: bytes, max_pixels: int) -> Image.Image:
    """An image in red, green and blue, upright; the first of several. What is transparent shows its colour.

    Args:
        data: A file in one of :data:`FORMATS`, or a ``.npy`` file: ``[height, width, 3]`` uint8.
        max_pixels: Images of more are refused.

    Raises:
        MediaError: ``damaged``, ``empty`` or ``too_large``.
    """
    if is_array(data):
        return _array(data, max_pixels)
    with _open(data, max_pixels) as image:
        try:
            return _in_colour(ImageOps.exif_transpose(image))
        except MediaError:
            raise
        except Exception as error:  # decoders raise anything on wrong bytes
            raise MediaError("damaged", f"the image cannot be decoded: {error!r}") from error


def _open(data: bytes, max_pixels: int) -> Image.Image:
    """A file of which the header has been read."""
    if not data:
        raise MediaError("empty", "the file is empty")
    try:
        image = Image.open(BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise MediaError("too_large", str(error)) from error
    except UnidentifiedImageError as error:
        raise MediaError("damaged", f"not an image of {', '.join(FORMATS)}") from error
    except Exception as error:  # decoders raise anything on wrong bytes
        raise MediaError("damaged", f"the header of the image is wrong: {error!r}") from error
    _check_size(image.width, image.height, max_pixels)
    return image


def _array(data: bytes, max_pixels: int) -> Image.Image:
    array = read_array(data)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        wanted = "[height, width, 3], uint8"
        raise MediaError("damaged", f"the array is {array.dtype} {list(array.shape)}, an image is {wanted}")
    _check_size(array.shape[1], array.shape[0], max_pixels)
    return Image.fromarray(array)


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if not width * height:
        raise MediaError("empty", f"{width} x {height} pixels")
    if width * height > max_pixels:
        raise MediaError("too_large", f"{width} x {height} pixels are more than max_pixels, which is {max_pixels}")


def _orientation(image: Image.Image, data: bytes) -> int:
    """EXIF's, of which 1 is upright."""
    # Pillow decodes a PNG to see whether there is something behind its pixels.
    if image.format == "PNG" and "exif" not in image.info and not any(mark in data for mark in _LATE):
        return 1
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception as error:  # as above
        raise MediaError("damaged", f"the orientation of the image cannot be read: {error!r}") from error


def _in_colour(image: Image.Image) -> Image.Image:
    """An image of any mode in red, green and blue."""
    if image.mode.startswith("I;16"):
        # Pillow would cut all but the darkest 256 of 65,536 greys to white.
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise MediaError("damaged", f"pixels of mode {image.mode} do not say what is black and what is white")
    return image.convert("RGB")

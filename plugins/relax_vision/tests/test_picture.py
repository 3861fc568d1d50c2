"""Files of every sort become one upright image, and what is wrong with them is said."""

import struct
import zlib

import numpy as np
import pytest
from pictures import image_file, picture
from PIL import Image
from relax_vision.picture import decode, size_of

from relax_core.api.media import MediaError
from relax_core.testing.encoder import array_file

PIXELS = 89_478_485
JPEG = image_file(picture(64, 48), "JPEG")
PNG = image_file(picture(64, 48))


def png_header(width: int, height: int) -> bytes:
    """A PNG that ends where its pixels would begin."""
    chunks = [b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT"]
    sealed = [struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(sealed)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("container", ["PNG", "JPEG", "WEBP"])
def test_images_are_turned_upright(container: str, orientation: int) -> None:
    data = image_file(picture(40, 20), container, orientation)
    upright = decode(data, PIXELS)
    assert upright.size == ((20, 40) if orientation >= 5 else (40, 20))
    assert size_of(data, PIXELS) == upright.size[::-1]


def test_an_orientation_behind_the_pixels_of_a_png_is_found() -> None:
    data = image_file(picture(40, 20), "PNG", 6)
    start = data.index(b"eXIf") - 4
    end = start + 12 + int.from_bytes(data[start : start + 4], "big")
    late = data[:start] + data[end:-12] + data[start:end] + data[-12:]
    assert size_of(late, PIXELS) == decode(late, PIXELS).size[::-1] == (40, 20)


def test_a_size_is_known_without_the_pixels() -> None:
    assert size_of(png_header(300, 200), PIXELS) == (200, 300)
    assert size_of(JPEG[:-200], PIXELS) == (48, 64)


def test_sixteen_bits_are_seen_as_eight() -> None:
    deep = decode(image_file(picture(40, 20, "I;16")), PIXELS)
    np.testing.assert_array_equal(np.asarray(deep), np.asarray(picture(40, 20).getchannel("R").convert("RGB")))


def test_what_is_transparent_shows_its_colour() -> None:
    clear = picture(40, 20, "RGBA")
    np.testing.assert_array_equal(np.asarray(decode(image_file(clear), PIXELS)), np.asarray(clear)[:, :, :3])


@pytest.mark.parametrize(
    ("data", "reason", "detail"),
    [
        (b"", "empty", "the file is empty"),
        (b"<html>not found</html>", "damaged", "not an image of PNG, JPEG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "damaged", "not an image"),
        (JPEG[:-200], "damaged", "truncated"),
        (PNG[: len(PNG) // 2], "damaged", "cannot be decoded"),
        (PNG[:20], "damaged", "the header of the image is wrong"),
        (png_header(10**5, 10**5), "too_large", "exceeds limit"),
        (png_header(12_000, 8_000), "too_large", "12000 x 8000 pixels are more than max_pixels, which is 89478485"),
        (array_file(np.zeros((4, 4), np.uint8)), "damaged", r"uint8 \[4, 4\]"),
        (array_file(np.zeros((4, 4, 3), np.float32)), "damaged", r"float32 \[4, 4, 3\]"),
        (array_file(np.zeros((0, 4, 3), np.uint8)), "empty", "4 x 0 pixels"),
        (image_file(Image.new("RGB", (2010, 10))), "too_long", "over 200 times the other"),
    ],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_what_is_no_image_is_refused_with_its_reason(make, data: bytes, reason: str, detail: str) -> None:
    with pytest.raises(MediaError, match=detail) as refused:
        make().encode("image", data)
    assert refused.value.reason == reason


def test_a_floating_pixel_has_no_known_white() -> None:
    with pytest.raises(MediaError, match="do not say what is black"):
        decode(image_file(Image.new("I", (4, 4)), "PPM"), PIXELS)

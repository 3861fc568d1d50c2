"""What a model sees is what transformers' own processor would show it."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import image_file, picture
from PIL import Image, ImageOps
from relax_vision.config import VisionEncoderConfig
from relax_vision.encoder import VisionEncoder
from transformers import Qwen2VLImageProcessorPil

from relax_core.api.context import Context, ModelSource
from relax_core.api.errors import ConfigError
from relax_core.testing.models import TINY_MEDIA, tiny_model

HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
"""How Qwen3 models, and the tiny ones, normalise colours."""
PLACE = 8
"""Pixels of a placeholder's side, of the tiny models."""


def check(encoder: VisionEncoder, data: bytes, processor: Any) -> None:
    encoded = encoder.encode("image", data)
    found = encoder.inputs([encoded], "cpu")
    wanted = processor(images=ImageOps.exif_transpose(Image.open(BytesIO(data))), return_tensors="np")
    assert set(found) == set(wanted)
    np.testing.assert_array_equal(found["image_grid_thw"], wanted["image_grid_thw"])
    np.testing.assert_allclose(found["pixel_values"], wanted["pixel_values"], rtol=1e-5, atol=0)
    assert encoder.layout("image", data) == encoded.layout


def tiny_processor(fewest: int = 4, most: int = 1280) -> Qwen2VLImageProcessorPil:
    size = {"shortest_edge": fewest * PLACE**2, "longest_edge": most * PLACE**2}
    return Qwen2VLImageProcessorPil(patch_size=4, size=size, **HALF)


SIDES = st.integers(1, 260)
MODES = ["RGB", "RGBA", "L", "LA", "P", "1"]


@pytest.mark.parametrize("model_type", TINY_MEDIA)
@given(width=SIDES, height=SIDES, mode=st.sampled_from(MODES), orientation=st.integers(1, 8))
@settings(max_examples=25)
def test_images_of_any_size_and_mode(make, model_type: str, width: int, height: int, mode: str, orientation: int):
    if max(width, height) <= 200 * min(width, height):
        data = image_file(picture(width, height, mode), orientation=orientation)
        check(make(model_type), data, tiny_processor())


@given(width=SIDES, height=SIDES, fewest=st.integers(1, 60), more=st.integers(0, 200))
@settings(max_examples=40)
def test_images_of_any_size_within_any_limits(make, width: int, height: int, fewest: int, more: int) -> None:
    encoder = make(min_tokens=fewest, max_tokens=fewest + more)
    if max(width, height) <= 200 * min(width, height):
        processor = tiny_processor(fewest, fewest + more)
        check(encoder, image_file(picture(width, height)), processor)


@pytest.mark.parametrize(
    ("container", "mode", "options"),
    [
        ("JPEG", "RGB", {}),
        ("JPEG", "L", {}),
        ("JPEG", "CMYK", {}),
        ("JPEG", "RGB", {"progressive": True, "orientation": 8}),
        ("PNG", "RGB", {"interlace": 1}),
        ("PNG", "P", {"transparency": 3}),
        ("GIF", "P", {}),
        ("WEBP", "RGBA", {}),
        ("WEBP", "RGB", {"orientation": 5}),
        ("AVIF", "RGB", {"orientation": 6}),
        ("BMP", "RGB", {}),
        ("PPM", "RGB", {}),
    ],
)
def test_every_format(make, container: str, mode: str, options: dict[str, Any]) -> None:
    data = image_file(picture(61, 43, mode), container, **options)
    check(make(), data, tiny_processor())


def test_of_several_images_the_first_is_seen(make) -> None:
    first, second = picture(30, 20), picture(30, 20, seed=1)
    both = image_file(first, "WEBP", save_all=True, append_images=[second], lossless=True)
    assert make().encode("image", both).key == make().encode("image", image_file(first)).key


def test_real_photographs_at_the_sizes_of_real_models(tmp_path: Path) -> None:
    data = image_file(picture(1237, 803), "JPEG", quality=90)
    for name, vision, processor in [
        ("qwen2_5_vl", {}, {"min_pixels": 3136, "max_pixels": 12845056}),
        ("qwen3_vl", {}, {**HALF, "patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 16777216}}),
    ]:
        encoder = of_folder(tmp_path, {"model_type": name, "vision_config": vision}, processor)
        check(encoder, data, Qwen2VLImageProcessorPil(**processor))


def test_where_nothing_is_said_limits_are_those_of_transformers(tmp_path: Path) -> None:
    size = {"shortest_edge": 4 * 32**2, "longest_edge": 1280 * 32**2}
    for name, processor in [
        ("qwen2_5_vl", Qwen2VLImageProcessorPil()),
        ("qwen3_vl", Qwen2VLImageProcessorPil(patch_size=16, size=size, **HALF)),
    ]:
        encoder = of_folder(tmp_path, {"model_type": name, "vision_config": {}}, None)
        for sides in ((20, 20), (1500, 900)):
            check(encoder, image_file(picture(*sides), "JPEG"), processor)


def of_folder(folder: Path, config: dict[str, Any], processor: dict[str, Any] | None, **given: Any) -> VisionEncoder:
    """An encoder of a folder that holds a configuration alone."""
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "processor_config.json").unlink(missing_ok=True)
    if processor is not None:
        (folder / "processor_config.json").write_text(json.dumps({"image_processor": processor}))
    return VisionEncoder(VisionEncoderConfig(**given), Context("test", 0, folder, ModelSource(folder)))


def test_sides_are_multiples_of_what_is_asked_for(make) -> None:
    encoded = make(multiple=24).encode("image", image_file(picture(100, 50)))
    assert encoded.arrays["grid"].tolist() == [1, 12, 24]
    assert encoded.layout == (72,)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"multiple": 20}, "multiple 20: a placeholder of this model is 8 pixels wide; did you mean 16?"),
        ({"max_tokens": 2}, "max_tokens 2: the smallest image would have 4 placeholders and the largest 2"),
        ({"min_tokens": 2000}, "min_tokens 2000: the smallest image would have 2000 placeholders and the largest 1280"),
    ],
)
def test_settings_that_do_not_suit_the_model_are_refused(make, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        make(**given)


def test_a_model_of_text_is_refused(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "model")
    with pytest.raises(ConfigError, match="is a qwen3, which does not see; models that do: qwen2_vl"):
        VisionEncoder(VisionEncoderConfig(), Context("test", 0, folder, ModelSource(folder)))


def test_a_model_that_sees_otherwise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a llava, which sees in a way that is not known here"):
        of_folder(tmp_path, {"model_type": "llava", "vision_config": {}}, None)

"""What a model sees of a video is what transformers' own video processors would show it."""

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import transformers
from films import film, film_file
from hypothesis import given, settings
from hypothesis import strategies as st
from relax_vision.clip import frames_of
from relax_vision.config import VideoEncoderConfig
from relax_vision.video import VideoEncoder
from relax_vision.viewing import Viewing, read_viewing

from relax_core.api.context import Context, ModelSource
from relax_core.api.errors import ConfigError
from relax_core.api.media import MediaError
from relax_core.testing.encoder import array_file
from relax_core.testing.models import TINY_MEDIA

PROCESSORS = {"qwen2_5_vl": "Qwen2VLVideoProcessor", "qwen3_vl": "Qwen3VLVideoProcessor"}
"""By type of model, what transformers calls the processor of its videos."""

MOST = 10_000


@cache
def processing(model_type: str) -> Any:
    """The module of a processor, of which the rules, though not the processor, do without torchvision."""
    of = "qwen3_vl" if model_type == "qwen3_vl" else "qwen2_vl"
    names = [f"torchvision{part}" for part in ("", ".transforms", ".transforms.v2", ".transforms.v2.functional")]
    absent = {} if find_spec("torchvision") else {name: ModuleType(name) for name in names}
    with patch.dict(sys.modules, absent):
        return importlib.import_module(f"transformers.models.{of}.video_processing_{of}")


def rule(model_type: str, name: str) -> Any:
    """A function of a processor, to be called with what it has to know of it."""
    return vars(getattr(processing(model_type), PROCESSORS[model_type]))[name]


@pytest.fixture(scope="module")
def viewing(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Viewing]:
    """``viewing(model_type, size)``: what is read of a folder that says the limits of sizes, or does not."""

    @cache
    def read(model_type: str, size: tuple[int, int] | None = None) -> Viewing:
        folder = tmp_path_factory.mktemp("folder")
        (folder / "config.json").write_text(json.dumps({"model_type": model_type, "vision_config": {}}))
        if size is not None:
            limits = dict(zip(("shortest_edge", "longest_edge"), size, strict=True))
            (folder / "video_preprocessor_config.json").write_text(json.dumps({"size": limits}))
        return read_viewing(ModelSource(folder), VideoEncoderConfig())

    return read


RATES = st.sampled_from([1.0, 8.0, 23.976023976023978, 25.0, 60.0])


@given(total=st.integers(2, 3000), rate=RATES, fps=st.floats(0.5, 9))
@settings(max_examples=300)
def test_frames_are_those_that_transformers_picks(
    viewing: Callable[..., Viewing], total: int, rate: float, fps: float
) -> None:
    for model_type in PROCESSORS:
        own = SimpleNamespace(min_frames=4, max_frames=768, fps=None, num_frames=None, temporal_patch_size=2)
        metadata = SimpleNamespace(total_num_frames=total, fps=rate)
        wanted = rule(model_type, "sample_frames")(own, metadata, fps=fps)
        found = replace(viewing(model_type), fps=fps).chosen(total, rate)
        np.testing.assert_array_equal(found, np.asarray(wanted)[: len(found)])
        assert len(wanted) - len(found) in (0, 1), "torch.arange may end one step late"


SIDES = st.integers(20, 2000)


@given(frames=st.integers(2, 768), height=SIDES, width=SIDES, size=st.sampled_from([None, (4096, 25_165_824)]))
@settings(max_examples=300)
def test_frames_are_as_large_as_in_transformers(
    viewing: Callable[..., Viewing], frames: int, height: int, width: int, size: tuple[int, int] | None
) -> None:
    for model_type, place in (("qwen2_5_vl", 28), ("qwen3_vl", 32)):
        fewest, most = size or (128 * place**2, 768 * place**2)
        rules = processing(model_type)
        if model_type == "qwen3_vl":
            cap = max(min(768 * place**2, most // frames), int(fewest * 1.05)) * frames
            wanted = rules.smart_resize(frames, height, width, 2, place, fewest, cap)
        else:
            shared = int(128_000 * place**2 * 0.9) * 2 // frames
            cap = max(min(most, shared), int(fewest * 1.05))
            wanted = rules.smart_resize(height, width, place, fewest, cap)
        assert viewing(model_type, size).resized(frames, height, width) == tuple(wanted)


@pytest.mark.parametrize("model_type", PROCESSORS)
@pytest.mark.parametrize("frames", [1, 2, 5, 12])
def test_patches_are_those_of_transformers(make_video, model_type: str, frames: int) -> None:
    pixels = film(frames, 48, 32)
    encoder = make_video(model_type)
    encoded = encoder.encode("video", array_file(pixels))
    found = encoder.inputs([encoded], "cpu")
    shown = torch.from_numpy(pixels).permute(0, 3, 1, 2)[None].float() / 255
    patches, *grid = rule(model_type, "patchify")(None, (shown - 0.5) / 0.5, 4, 2, 2)
    assert found["video_grid_thw"].tolist() == [grid]
    torch.testing.assert_close(found["pixel_values_videos"], patches[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("model_type", PROCESSORS)
def test_all_is_as_in_transformers(folders: dict[str, Path], tmp_path: Path, model_type: str) -> None:
    pytest.importorskip("torchvision", reason="transformers' video processors need it")
    data = film_file(film(30, 100, 70))
    is_third = model_type == "qwen3_vl"
    size = {"shortest_edge": 6 * 64, "longest_edge": 24 * 64 * (8 if is_third else 1)}
    own = {"patch_size": 4, "size": size, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    own |= {"max_video_tokens": 20} if is_third else {}
    (tmp_path / "config.json").write_text((folders[model_type] / "config.json").read_text())
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(own))
    config = VideoEncoderConfig(max_tokens=20 if is_third else None)
    encoder = VideoEncoder(config, Context("test", 0, tmp_path, ModelSource(tmp_path)))
    processor = getattr(transformers, PROCESSORS[model_type])(**own, cap_pixels_per_frame=True)
    wanted = processor(
        [np.stack(list(frames_of(data, MOST)))],
        video_metadata=[transformers.video_utils.VideoMetadata(total_num_frames=30, fps=8.0)],
        **{"do_sample_frames": True, "fps": 2, "return_tensors": "pt"},
    )
    found = encoder.inputs([encoder.encode("video", data)], "cpu")
    assert found["video_grid_thw"].tolist() == wanted["video_grid_thw"].tolist()
    torch.testing.assert_close(found["pixel_values_videos"], wanted["pixel_values_videos"], rtol=1e-5, atol=1e-6)


def test_a_model_that_reads_the_time_is_told_it(make_video) -> None:
    data = film_file(film(24, 64, 64))  # three seconds, of which six frames are seen: 0, 5, 9, 14, 18, 23
    told = ("<0.3 seconds>", 4, "<1.4 seconds>", 4, "<2.6 seconds>", 4)
    assert make_video(max_tokens=4).encode("video", data).layout == told
    alone = make_video(max_tokens=4).encode("video", film_file(film(1, 64, 64)))
    assert alone.layout == ("<0.0 seconds>", 4)


@pytest.mark.parametrize(
    ("model_type", "name"),
    [("qwen2_5_vl", "second_per_grid_ts"), ("qwen2_5_omni_thinker", "video_second_per_grid"), ("qwen3_vl", None)],
)
def test_a_model_that_asks_for_seconds_is_given_them(make_video, model_type: str, name: str | None) -> None:
    encoder = make_video(model_type)
    inputs = encoder.inputs([encoder.encode("video", film_file(film(24, seed=seed), rate=8)) for seed in (0, 1)], "cpu")
    assert set(inputs) == {"pixel_values_videos", "video_grid_thw"} | ({name} if name else set())
    if name:
        assert inputs[name].tolist() == [1.0, 1.0], "two frames of three seconds, of which six are seen"


@pytest.mark.parametrize("model_type", TINY_MEDIA)
def test_a_long_video_has_no_more_frames_than_wanted(make_video, model_type: str) -> None:
    encoder = make_video(model_type, max_frames=6, fps=8)
    assert encoder.encode("video", film_file(film(40), rate=8)).arrays["grid"].tolist()[0] == 3
    with pytest.raises(MediaError, match="7 frames are more than max_frames 6") as error:
        encoder.encode("video", array_file(film(7)))
    assert error.value.reason == "too_long"


def test_a_video_that_is_cut_off_is_refused(make_video) -> None:
    data = film_file(film(40, 160, 96), movflags="frag_keyframe+empty_moov")
    encoder, refused = make_video(), 0
    for end in range(len(data) // 2, len(data), 97):
        try:
            encoder.encode("video", data[:end])
        except MediaError as error:
            refused += 1
            assert error.reason in ("damaged", "empty")
    assert refused > 10


def test_limits_that_do_not_suit_the_model_are_refused(make_video) -> None:
    with pytest.raises(
        ConfigError, match="max_tokens 4: the smallest frame would have 128 placeholders and the largest 4"
    ):
        make_video("qwen2_5_vl", min_tokens=None, max_tokens=4)
    with pytest.raises(ValueError, match="min_frames: 9 is more than max_frames, which is 8"):
        VideoEncoderConfig(min_frames=9, max_frames=8)


def test_arrays_that_are_no_video_are_refused(make_video) -> None:
    for array in (np.zeros((4, 8, 8, 4), np.uint8), np.zeros((4, 8, 8, 3), np.float32), np.zeros((8, 8, 3), np.uint8)):
        with pytest.raises(MediaError, match=r"a video is \[frames, height, width, 3\], uint8"):
            make_video().encode("video", array_file(array))
    with pytest.raises(MediaError) as error:
        make_video().encode("video", array_file(np.zeros((0, 8, 8, 3), np.uint8)))
    assert error.value.reason == "empty"

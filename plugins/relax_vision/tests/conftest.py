"""Encoders for tiny models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from relax_vision.config import VideoEncoderConfig, VisionEncoderConfig
from relax_vision.encoder import VisionEncoder
from relax_vision.video import VideoEncoder

from relax_core.api.context import Context, ModelSource
from relax_core.testing.models import TINY_MEDIA, tiny_media_model


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model of each type."""
    return {name: tiny_media_model(tmp_path_factory.mktemp("model"), name) for name in TINY_MEDIA}


@pytest.fixture(scope="session")
def make(folders: dict[str, Path]) -> Callable[..., VisionEncoder]:
    """``make(model_type, **settings)``: an encoder."""

    def build(model_type: str = "qwen3_vl", **settings: Any) -> VisionEncoder:
        folder = folders[model_type]
        return VisionEncoder(VisionEncoderConfig(**settings), Context("test", 0, folder, ModelSource(folder)))

    return build


@pytest.fixture(scope="session")
def make_video(folders: dict[str, Path]) -> Callable[..., VideoEncoder]:
    """``make_video(model_type, **settings)``: an encoder of videos, whose frames are small unless the settings say."""

    def build(model_type: str = "qwen3_vl", **settings: Any) -> VideoEncoder:
        folder = folders[model_type]
        config = VideoEncoderConfig(**{"min_tokens": 4, "max_tokens": 24, **settings})
        return VideoEncoder(config, Context("test", 0, folder, ModelSource(folder)))

    return build

"""The encoders keep the contract of all encoders, of every format and for each kind of vision tower."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from films import film, film_file
from pictures import image_file, picture
from relax_vision.encoder import VisionEncoder
from relax_vision.video import VideoEncoder

from relax_core.api.context import ModelSource
from relax_core.api.media import Encoded, Kind
from relax_core.models.load import load_language_model
from relax_core.testing.encoder import EncoderContract, array_file
from relax_core.testing.models import TINY_MEDIA


class SeenContract(EncoderContract):
    """What towers of every kind see."""

    @pytest.fixture(scope="class", params=TINY_MEDIA)
    @classmethod
    def model(cls, request, folders):
        """A tower with real weights, however few."""
        cls.sees = load_language_model(ModelSource(folders[request.param]))
        return request.param

    def seen(self, encoded: Encoded) -> Any:
        """What the tower makes of a medium."""
        raise NotImplementedError

    def features(self, encoded: Encoded) -> int:
        seen = self.seen(encoded).pooler_output
        return len(seen[0] if isinstance(seen, list | tuple) else seen)


class TestVisionEncoder(SeenContract):
    @pytest.fixture
    def encoder(self, model: str, make) -> VisionEncoder:
        self.made = make(model)
        return self.made

    @pytest.fixture
    def examples(self) -> Mapping[Kind, Sequence[bytes]]:
        frames = [picture(20, 30, seed=seed) for seed in (5, 6)]
        return {
            "image": [
                image_file(picture(40, 24)),
                image_file(picture(33, 21, "P"), "GIF"),
                image_file(picture(17, 50), "JPEG", orientation=6),
                image_file(picture(30, 31, "RGBA"), "WEBP", lossless=True),
                image_file(frames[0], "WEBP", save_all=True, append_images=frames[1:]),
                image_file(picture(1, 1)),
                array_file(np.asarray(picture(60, 40))),
            ]
        }

    def seen(self, encoded: Encoded) -> Any:
        inputs = self.made.inputs([encoded], "cpu")
        return self.sees.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])


class TestVideoEncoder(SeenContract):
    @pytest.fixture
    def encoder(self, model: str, make_video) -> VideoEncoder:
        self.made = make_video(model)
        return self.made

    @pytest.fixture
    def examples(self) -> Mapping[Kind, Sequence[bytes]]:
        return {
            "video": [
                film_file(film(12)),
                film_file(film(7, 50, 90, seed=1), "webm"),
                film_file(film(5, seed=2), "gif"),
                film_file(film(1, seed=3), "avi"),
                array_file(film(4, 32, 40, seed=4)),
            ]
        }

    def seen(self, encoded: Encoded) -> Any:
        inputs = self.made.inputs([encoded], "cpu")
        return self.sees.get_video_features(inputs["pixel_values_videos"], inputs["video_grid_thw"])

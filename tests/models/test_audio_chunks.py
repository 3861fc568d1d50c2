"""What is heard in a clip does not depend on clips beside it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText

from relax_core.api.context import ModelSource
from relax_core.api.media import Encoded
from relax_core.models.load import load_language_model
from relax_core.testing.models import telling_media_model
from relax_core.testing.random_media import RandomMedia

HEARING = ("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker")


@pytest.fixture(scope="module", params=HEARING)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return telling_media_model(tmp_path_factory.mktemp(request.param), request.param)


def heard(model: torch.nn.Module, encoder: RandomMedia, clips: list[Encoded]) -> Iterator[Tensor]:
    """The features of each clip, out of one batch."""
    with torch.no_grad():
        features = model.get_audio_features(**encoder.inputs(clips, "cpu")).last_hidden_state
    return iter(features.split([clip.places for clip in clips]))


def test_a_clip_is_heard_alike_alone_and_beside_others(folder: Path) -> None:
    model = load_language_model(ModelSource(folder))
    encoder = RandomMedia(model.config)
    clips = [encoder.audio(seed, frames) for seed, frames in enumerate((30, 76, 99, 100, 130, 250))]
    for clip, features in zip(clips, heard(model, encoder, clips), strict=True):
        (alone,) = heard(model, encoder, [clip])
        np.testing.assert_allclose(features, alone, rtol=1e-4, atol=1e-5)


def test_clips_of_a_second_and_more_are_heard_as_by_transformers(folder: Path) -> None:
    """Whose batch of a shorter and a longer one is ours as well."""
    model = load_language_model(ModelSource(folder))
    plain = AutoModelForImageTextToText.from_pretrained(folder)
    encoder = RandomMedia(model.config)
    short, exact, longer = (encoder.audio(seed, frames) for seed, frames in enumerate((76, 100, 230)))
    for clips in ([exact], [longer], [short, longer]):
        for ours, theirs in zip(heard(model, encoder, clips), heard(plain, encoder, clips), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)

"""Features are those of the models' own processors, and as many as their towers make of them."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from relax_audio.encoder import AudioEncoder
from relax_audio.hearing import read_hearing
from relax_audio.mel import mel_filters
from sounds import Samples, noise, tone
from transformers.audio_utils import mel_filter_bank
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import _get_feat_extract_output_lengths

from relax_core.api.context import ModelSource
from relax_core.api.errors import ConfigError
from relax_core.models.load import load_language_model
from relax_core.testing.encoder import array_file
from relax_core.testing.models import tiny_model

SOUNDS = {
    "noise": noise(20000),
    "tone": tone(1.5, 16000),
    "silence": np.zeros(5000, np.float32),
    "click at the end": np.eye(1, 1600, 1599, dtype=np.float32)[0],
    "whole frames": noise(32000),
    "thirty seconds": noise(480_000),
    "a sample less": noise(479_999),
}


Reference = Callable[[Samples], Samples]


def check(encoder: AudioEncoder, samples: Samples, reference: Reference) -> None:
    encoded = encoder.encode("audio", array_file(samples))
    np.testing.assert_allclose(encoded.arrays["features"], reference(samples), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("samples", SOUNDS.values(), ids=SOUNDS)
def test_features_are_those_of_the_processor(make, model_type: str, reference: Reference, samples: Samples) -> None:
    check(make(model_type), samples, reference)


@given(length=st.integers(400, 40_000), seed=st.integers(0, 9), loudness=st.floats(-9, 0))
@settings(max_examples=30)
def test_features_of_any_length_and_loudness(
    make, model_type: str, reference: Reference, length: int, seed: int, loudness: float
) -> None:
    check(make(model_type), noise(length, seed) * np.float32(10**loudness), reference)


@pytest.mark.parametrize("mels", [16, 80, 128])
def test_filters_are_those_of_transformers(mels: int) -> None:
    wanted = mel_filter_bank(201, mels, 0.0, 8000.0, 16000, norm="slaney", mel_scale="slaney")
    np.testing.assert_allclose(mel_filters(mels, 16000, 400), wanted, rtol=1e-12, atol=1e-15)


def test_a_tower_makes_as_many_features_as_are_counted(folders, model_type: str) -> None:
    source = ModelSource(folders[model_type])
    hearing, model = read_hearing(source), load_language_model(source)
    for frames in [*range(3, 30), 39, 40, 41, 80, 99, 100, 101, 200, 215, 400, 401]:
        features, mask = torch.zeros(1, hearing.mels, frames), torch.ones(1, frames, dtype=torch.long)
        heard = model.get_audio_features(features, feature_attention_mask=mask).last_hidden_state
        assert hearing.places(frames * hearing.hop) == len(heard), f"{frames} frames"


@given(frames=st.integers(1, 5000))
def test_chunks_are_counted_as_the_model_counts_them(folders, frames: int) -> None:
    hearing = read_hearing(ModelSource(folders["qwen3_omni_moe_thinker"]))
    counted = _get_feat_extract_output_lengths(torch.tensor(frames), hearing.window)
    assert hearing.places(frames * hearing.hop + 41) == int(counted)


def test_a_model_of_text_is_refused(tmp_path) -> None:
    folder = tiny_model(tmp_path / "model")
    with pytest.raises(ConfigError, match="is a qwen3, which does not hear; models that do: qwen2_5_omni_thinker"):
        read_hearing(ModelSource(folder))


def test_what_the_folder_says_counts(tmp_path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "qwen2_5_omni", "thinker_config": {"model_type": "qwen2_5_omni_thinker", "audio_config": {}}}'
    )
    (tmp_path / "preprocessor_config.json").write_text('{"feature_size": 128, "chunk_length": 300, "hop_length": 160}')
    hearing = read_hearing(ModelSource(tmp_path))
    assert (hearing.mels, hearing.chunk, hearing.window) == (128, 300 * 16000, 100)

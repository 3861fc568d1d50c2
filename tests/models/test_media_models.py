"""Folders of models that see and hear: made, loaded, and known by their media."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoTokenizer

from relax_core.api.context import ModelSource
from relax_core.models.load import load_language_model
from relax_core.models.media_tokens import MediaTokens, media_tokens
from relax_core.testing.models import TINY_MEDIA, tiny_media_model

WHOLE_MODELS = {"qwen2_5_omni_thinker": "qwen2_5_omni", "qwen3_omni_moe_thinker": "qwen3_omni_moe"}


@pytest.mark.parametrize("model_type", TINY_MEDIA)
def test_a_folder_is_made_that_loads_and_tells_its_media(tmp_path: Path, model_type: str) -> None:
    folder = tiny_media_model(tmp_path, model_type)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = media_tokens(ModelSource(folder))
    assert set(tokens) == {"image", "video", "audio"} if "omni" in model_type else {"image", "video"}
    for kind, (before, placeholder, after) in {
        "image": ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
        "video": ("<|vision_start|>", "<|video_pad|>", "<|vision_end|>"),
        "audio": ("<|audio_start|>", "<|audio_pad|>", "<|audio_end|>"),
    }.items():
        first, middle, last = tokenizer.convert_tokens_to_ids([before, placeholder, after])
        assert tokens.get(kind) in (None, MediaTokens(middle, (first,), (last,)))
    model = load_language_model(ModelSource(folder))
    assert model.config.model_type == model_type
    assert model.config.get_text_config().vocab_size == len(tokenizer)
    assert json.loads((folder / "preprocessor_config.json").read_text())["patch_size"] == 4


def test_a_model_of_text_has_no_media(tiny_model_path: Path) -> None:
    assert media_tokens(ModelSource(tiny_model_path)) == {}
    assert not (tiny_model_path / "preprocessor_config.json").exists()


@pytest.mark.parametrize("model_type", WHOLE_MODELS)
def test_the_thinker_of_a_whole_omni_model_is_loaded(tmp_path: Path, model_type: str) -> None:
    """The folder of a whole model holds its thinker's weights under a prefix, and others."""
    thinker = tiny_media_model(tmp_path / "thinker", model_type)
    whole = tmp_path / "whole"
    config = AutoConfig.for_model(WHOLE_MODELS[model_type], thinker_config=AutoConfig.from_pretrained(thinker))
    config.save_pretrained(whole)
    AutoTokenizer.from_pretrained(thinker).save_pretrained(whole)
    weights = load_file(thinker / "model.safetensors")
    spoken = {"talker.codec_head.weight": torch.zeros(2, 2)}
    save_file({**{f"thinker.{name}": weights[name] for name in weights}, **spoken}, whole / "model.safetensors")

    assert media_tokens(ModelSource(whole)) == media_tokens(ModelSource(thinker))
    expected, loaded = (load_language_model(ModelSource(path)) for path in (thinker, whole))
    assert type(loaded) is type(expected)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    loaded.save_pretrained(tmp_path / "saved")
    assert load_language_model(ModelSource(tmp_path / "saved")).config.model_type == model_type


@pytest.mark.parametrize("model_type", TINY_MEDIA)
def test_the_layers_that_first_see_or_hear_keep_the_size_of_a_signal(tmp_path: Path, model_type: str) -> None:
    model = load_language_model(ModelSource(tiny_media_model(tmp_path, model_type)))
    convolutions = [each for each in model.modules() if isinstance(each, nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    assert convolutions
    for layer in convolutions:
        signal = layer.weight.flatten(1).norm(dim=1).mean()
        assert 1.2 < signal < 1.6, "the norm of a kernel is the square root of 2, against a fan-in times 0.02"

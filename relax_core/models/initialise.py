"""A model folder with random weights, for quickstarts and tests."""

import json
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoTokenizer

from relax_core.api.errors import ConfigError
from relax_core.api.model_files import PREPROCESSOR
from relax_core.models.byte_tokenizer import byte_tokenizer
from relax_core.models.init_keys import require_known_keys
from relax_core.models.load import auto_class
from relax_core.models.parts import tower_of
from relax_core.models.preprocessing import preprocessing_of
from relax_core.suggestions import did_you_mean

MEDIA_TOKENS = {
    "image_token_id": ("image_token", "<|image_pad|>"),
    "video_token_id": ("video_token", "<|video_pad|>"),
    "audio_token_id": ("audio_token", "<|audio_pad|>"),
    "vision_start_token_id": ("vision_bos_token", "<|vision_start|>"),
    "vision_end_token_id": ("vision_eos_token", "<|vision_end|>"),
    "audio_start_token_id": ("audio_bos_token", "<|audio_start|>"),
    "audio_end_token_id": ("audio_eos_token", "<|audio_end|>"),
}
"""By key of a configuration, what tokenizers of omni models call a token, and how other tokenizers spell it."""


def initialise_model(directory: Path, config: Mapping[str, Any], tokenizer: str, seed: int) -> Path:
    """Writes a model that writes text, with random weights, and its tokenizer, as a Hugging Face folder.

    Args:
        directory: Where; made if absent.
        config: Keyword arguments of ``AutoConfig.for_model``, with ``text_config``, ``vision_config`` and
            ``audio_config`` where the type has them; vocabulary size and token ids come from the tokenizer.
        tokenizer: ``bytes``, or a folder to load one from.
        seed: Seed of the weights.

    Raises:
        ConfigError: transformers knows no such model type, it has no such key, or not with such a value.
    """
    pieces = byte_tokenizer() if tokenizer == "bytes" else AutoTokenizer.from_pretrained(tokenizer)
    model_config = _configuration(dict(config), pieces)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        model = auto_class(model_config).from_config(model_config, dtype=torch.float32)
        _initialise_towers(model)
    model.generation_config.eos_token_id = pieces.eos_token_id
    model.generation_config.pad_token_id = pieces.pad_token_id
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    pieces.save_pretrained(directory)
    if preprocessing := preprocessing_of(model_config):
        (directory / PREPROCESSOR).write_text(json.dumps(preprocessing, indent=2))
    return directory


def _configuration(arguments: dict[str, Any], pieces: Any) -> Any:
    """The model's configuration, with the tokenizer's size and ids in it and in the part that writes text."""
    model_type = arguments.pop("model_type", None)
    if str(model_type) not in CONFIG_MAPPING:
        nearest = did_you_mean(str(model_type), CONFIG_MAPPING)
        raise ConfigError(f"model.init.model_type: transformers knows no {model_type!r}{nearest}")
    try:
        config = AutoConfig.for_model(model_type, **deepcopy(arguments))  # which takes parts of it to pieces
    except (StrictDataclassError, ValueError) as error:
        raise ConfigError(f"model.init: {' '.join(str(error).split())}") from error
    require_known_keys(arguments, config, ("model", "init"))
    text = config.get_text_config(decoder=True)
    text.vocab_size = max(len(pieces), {**arguments, **arguments.get("text_config", {})}.get("vocab_size", 0))
    for part in (config, text):
        part.eos_token_id = pieces.eos_token_id
        part.pad_token_id = pieces.pad_token_id
    if text is not config:
        text.bos_token_id = pieces.bos_token_id
        for key, names in MEDIA_TOKENS.items():
            if key not in arguments and (index := _token_id(pieces, *names)) is not None:
                setattr(config, key, index)
    return config


def _token_id(pieces: Any, attribute: str, spelling: str) -> int | None:
    index: int | None = pieces.convert_tokens_to_ids(getattr(pieces, attribute, None) or spelling)
    return None if index == pieces.unk_token_id else index


def _initialise_towers(model: nn.Module) -> None:
    """Gives the layers that first see or hear weights that keep the size of a signal (He et al. 2015,
    arXiv:1502.01852).

    With transformers' standard deviation of 0.02, three convolutions make a spectrogram some ten thousand times smaller
    than the codes of places that are added to it, and no training finds it again.
    """
    for name, module in model.named_modules():
        if tower_of(name) and (isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) or name.endswith(".conv_out")):
            nn.init.kaiming_normal_(module.weight)

"""A model folder with random weights, for quickstarts and tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from relax_core.api.errors import ConfigError
from relax_core.models.byte_tokenizer import byte_tokenizer


def initialise_model(directory: Path, config: Mapping[str, Any], tokenizer: str, seed: int) -> Path:
    """Writes a causal language model with random weights, and its tokenizer, as a Hugging Face folder.

    Args:
        directory: Where; made if absent.
        config: Keyword arguments of ``AutoConfig.for_model``; vocabulary size and token ids come from the tokenizer.
        tokenizer: ``bytes``, or a folder to load one from.
        seed: Seed of the weights.

    Raises:
        ConfigError: transformers knows no such model type.
    """
    pieces = byte_tokenizer() if tokenizer == "bytes" else AutoTokenizer.from_pretrained(tokenizer)
    arguments = {**config}
    model_type = arguments.pop("model_type", None)
    try:
        model_config = AutoConfig.for_model(model_type, **arguments)
    except ValueError as error:
        raise ConfigError(f"model.init.model_type: transformers knows no {model_type!r}") from error
    model_config.vocab_size = max(len(pieces), arguments.get("vocab_size", 0))
    model_config.eos_token_id = pieces.eos_token_id
    model_config.pad_token_id = pieces.pad_token_id
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        model = AutoModelForCausalLM.from_config(model_config, dtype=torch.float32)
    model.generation_config.eos_token_id = pieces.eos_token_id
    model.generation_config.pad_token_id = pieces.pad_token_id
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    pieces.save_pretrained(directory)
    return directory

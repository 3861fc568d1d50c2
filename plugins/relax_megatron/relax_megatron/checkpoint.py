"""Folders like those of the embedded trainer: a Hugging Face model, the optimizer's state beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import save_torch_state_dict
from torch import Tensor
from transformers import AutoConfig

from relax_core.api.context import ModelSource
from relax_core.trainers.checkpoint import save_preprocessing


def save_model(directory: Path, tensors: Mapping[str, Tensor], source: ModelSource) -> None:
    """Writes weights, configuration and tokenizer of the model of ``source`` with other weights."""
    directory.mkdir(parents=True, exist_ok=True)
    model = AutoConfig.from_pretrained(source.path, trust_remote_code=source.trust_remote_code)
    model.dtype = source.dtype
    model.save_pretrained(directory)
    save_preprocessing(directory, source)
    save_torch_state_dict(dict(tensors), directory)

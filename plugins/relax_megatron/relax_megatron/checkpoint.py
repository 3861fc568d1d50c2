"""Folders like those of the embedded trainer: a Hugging Face model, the optimizer's state beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import save_torch_state_dict
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer

from relax_core.api.context import ModelSource
from relax_core.api.errors import TrainingError
from relax_core.trainers.torch.checkpoint import STATE, TENSORS


def save_model(directory: Path, tensors: Mapping[str, Tensor], source: ModelSource) -> None:
    """Writes weights, configuration and tokenizer of the model of ``source`` with other weights."""
    directory.mkdir(parents=True, exist_ok=True)
    model = AutoConfig.from_pretrained(source.path, trust_remote_code=source.trust_remote_code)
    model.dtype = source.dtype
    model.save_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(source.path, trust_remote_code=source.trust_remote_code)
    tokenizer.save_pretrained(directory)
    save_torch_state_dict(dict(tensors), directory)


def save_optimizer(directory: Path, state: Mapping[str, Mapping[str, Tensor]], counters: Mapping[str, object]) -> None:
    """Writes the optimizer's tensors, by kind and Hugging Face name, and its counters."""
    named = {f"{kind}.{name}": tensor for kind, tensors in state.items() for name, tensor in tensors.items()}
    save_file(named, directory / TENSORS)
    (directory / STATE).write_text(json.dumps(counters))


def read_counters(directory: Path, source: ModelSource) -> dict[str, int]:
    """What :func:`save_optimizer` wrote beside the tensors.

    Raises:
        TrainingError: The folder has no optimizer state, or one of another compute dtype.
    """
    if not (directory / STATE).is_file():
        raise TrainingError(f"{directory} has no {STATE}: it was not written by a trainer's save")
    state = json.loads((directory / STATE).read_text())
    if state["dtype"] != source.dtype:
        raise TrainingError(f"{directory} was saved with model.dtype {state['dtype']!r}, this run has {source.dtype!r}")
    return {"updates": state["updates"], "skipped_in_row": state["skipped_in_row"]}

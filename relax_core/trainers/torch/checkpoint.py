"""Folders a run can go on from, and anyone can load: a Hugging Face model with the optimizer's state beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from relax_core.api.context import ModelSource
from relax_core.trainers.checkpoint import TENSORS, read_counters, save_optimizer, save_preprocessing
from relax_core.trainers.optimizer import MasterOptimizer
from relax_core.trainers.torch.fsdp import ShardedOptimizer, load_tensors, whole_tensors
from relax_core.trainers.torch.model import HOST, Model, load_model


def save_checkpoint(directory: Path, model: Model, source: ModelSource, optimizer: MasterOptimizer) -> None:
    """Writes weights, configurations, tokenizer and the optimizer's state."""
    _write(directory, model, source, optimizer.tensors(), optimizer.counters())


def load_checkpoint(directory: Path, model: Model, source: ModelSource, optimizer: MasterOptimizer) -> None:
    """Puts what :func:`save_checkpoint` wrote into a model and its optimizer.

    Raises:
        TrainingError: The folder has no optimizer state, or one of another compute dtype or model.
    """
    counters = read_counters(directory, source)
    model.load_state_dict(load_model(source, HOST, folder=directory).state_dict())
    optimizer.load(load_file(directory / TENSORS), counters)


def save_sharded(directory: Path, model: Model, source: ModelSource, optimizer: ShardedOptimizer, writes: bool) -> None:
    """Writes the same folder from parts that are on several ranks. All call this together, and one of them writes."""
    state = whole_tensors(model, getattr(torch, source.dtype), writes)
    tensors = {}
    for name, tensor in optimizer.whole():
        if writes:
            tensors[name] = tensor.to(HOST, copy=True)
    if not writes:
        return
    with torch.device("meta"):
        whole = type(model)(model.config)
    whole.load_state_dict(state, assign=True)
    whole.generation_config = model.generation_config
    _write(directory, whole, source, tensors, optimizer.counters())


def load_sharded(directory: Path, model: Model, source: ModelSource, optimizer: ShardedOptimizer) -> None:
    """:func:`load_checkpoint` on a rank that holds parts; each reads the folder by itself, whoever has written it.

    Raises:
        TrainingError: As there.
    """
    counters = read_counters(directory, source)
    load_tensors(model, load_model(source, HOST, folder=directory, dtype="float32").state_dict())
    optimizer.load(load_file(directory / TENSORS), counters)


def _write(
    directory: Path, model: Model, source: ModelSource, tensors: Mapping[str, Tensor], counters: Mapping[str, int]
) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    save_preprocessing(directory, source)
    on_host = {name: tensor.detach().to(HOST).contiguous() for name, tensor in tensors.items()}
    save_optimizer(directory, on_host, counters, source)

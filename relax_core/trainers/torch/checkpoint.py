"""Folders a run can go on from, and anyone can load: a Hugging Face model with the optimizer's state beside it."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file

from relax_core.api.context import ModelSource
from relax_core.trainers.checkpoint import TENSORS, read_counters, save_optimizer, save_tokenizer
from relax_core.trainers.optimizer import MasterOptimizer
from relax_core.trainers.torch.model import HOST, Model, load_model


def save_checkpoint(directory: Path, model: Model, source: ModelSource, optimizer: MasterOptimizer) -> None:
    """Writes weights, configurations, tokenizer and the optimizer's state."""
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    save_tokenizer(directory, source)
    tensors = {name: tensor.detach().to(HOST).contiguous() for name, tensor in optimizer.tensors().items()}
    save_optimizer(directory, tensors, optimizer.counters(), source)


def load_checkpoint(directory: Path, model: Model, source: ModelSource, optimizer: MasterOptimizer) -> None:
    """Puts what :func:`save_checkpoint` wrote into a model and its optimizer.

    Raises:
        TrainingError: The folder has no optimizer state, or one of another compute dtype or model.
    """
    counters = read_counters(directory, source)
    model.load_state_dict(load_model(source, HOST, folder=directory).state_dict())
    optimizer.load(load_file(directory / TENSORS), counters)

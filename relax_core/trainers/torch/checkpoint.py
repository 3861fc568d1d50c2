"""Folders a run can go on from, and anyone can load: a Hugging Face model with the optimizer's state beside it."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from relax_core.api.context import ModelSource
from relax_core.api.errors import TrainingError
from relax_core.trainers.torch.model import HOST, Model, load_model
from relax_core.trainers.torch.optimizer import MasterOptimizer

TENSORS = "optimizer.safetensors"
STATE = "optimizer.json"


def save_checkpoint(directory: Path, model: Model, source: ModelSource, optimizer: MasterOptimizer) -> None:
    """Writes weights, configurations, tokenizer and the optimizer's state."""
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(source.path, trust_remote_code=source.trust_remote_code)
    tokenizer.save_pretrained(directory)
    tensors = {name: tensor.detach().to(HOST).contiguous() for name, tensor in optimizer.tensors().items()}
    save_file(tensors, directory / TENSORS)
    state = {"dtype": source.dtype, "updates": optimizer.updates, "skipped_in_row": optimizer.skipped_in_row}
    (directory / STATE).write_text(json.dumps(state))


def load_checkpoint(directory: Path, model: Model, source: ModelSource, optimizer: MasterOptimizer) -> None:
    """Puts what :func:`save_checkpoint` wrote into a model and its optimizer.

    Raises:
        TrainingError: The folder has no optimizer state, or one of another compute dtype or model.
    """
    if not (directory / STATE).is_file():
        raise TrainingError(f"{directory} has no {STATE}: it was not written by a trainer's save")
    state = json.loads((directory / STATE).read_text())
    if state["dtype"] != source.dtype:
        raise TrainingError(f"{directory} was saved with model.dtype {state['dtype']!r}, this run has {source.dtype!r}")
    model.load_state_dict(load_model(source, HOST, folder=directory).state_dict())
    optimizer.load_tensors(load_file(directory / TENSORS))
    optimizer.updates, optimizer.skipped_in_row = state["updates"], state["skipped_in_row"]

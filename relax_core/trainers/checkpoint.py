"""The optimizer's part of a folder a run can go on from, the same for all trainers: beside a Hugging Face model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from relax_core.api.context import ModelSource
from relax_core.api.errors import TrainingError
from relax_core.api.model_files import PREPROCESSOR_FILES
from relax_core.models.tokenizer import load_tokenizer

TENSORS = "optimizer.safetensors"
STATE = "optimizer.json"


def save_preprocessing(directory: Path, source: ModelSource) -> None:
    """Writes what makes inputs of a prompt and its media: the tokenizer of ``source``, and the settings of its
    preprocessors."""
    tokenizer = load_tokenizer(source)
    tokenizer.save_pretrained(directory)
    for name in PREPROCESSOR_FILES:
        if (source.path / name).exists():
            shutil.copyfile(source.path / name, directory / name)


def save_optimizer(
    directory: Path, tensors: Mapping[str, Tensor], counters: Mapping[str, int], source: ModelSource
) -> None:
    """Writes what :meth:`MasterOptimizer.tensors` and :meth:`MasterOptimizer.counters` give.

    Args:
        directory: Exists.
        tensors: On the host, contiguous, by kind and Hugging Face name.
        counters: Of the optimizer.
        source: The model that is trained.
    """
    save_file(dict(tensors), directory / TENSORS)
    (directory / STATE).write_text(json.dumps({"dtype": source.dtype, **counters}))


def read_counters(directory: Path, source: ModelSource) -> dict[str, int]:
    """The counters that :func:`save_optimizer` wrote beside the tensors.

    Raises:
        TrainingError: The folder has no optimizer state, or one of another compute dtype.
    """
    if not (directory / STATE).is_file():
        raise TrainingError(f"{directory} has no {STATE}: it was not written by a trainer's save")
    state = json.loads((directory / STATE).read_text())
    if state["dtype"] != source.dtype:
        raise TrainingError(f"{directory} was saved with model.dtype {state['dtype']!r}, this run has {source.dtype!r}")
    return {"updates": state["updates"], "skipped_in_row": state["skipped_in_row"]}

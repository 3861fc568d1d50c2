"""Folders in Hugging Face format, read tensor by tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from relax_core.api.errors import TrainingError
from relax_megatron.conversion import EMBEDDING, HEAD

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class TensorFile:
    """Tensors of one or several safetensors files by name, read when asked for.

    Args:
        paths: The files.
    """

    def __init__(self, *paths: Path) -> None:
        self._files: dict[str, Any] = {}
        for path in paths:
            opened = safe_open(path, framework="pt")
            self._files |= dict.fromkeys(opened.keys(), opened)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def __getitem__(self, name: str) -> Tensor:
        """One tensor, whole.

        Raises:
            TrainingError: No file has it.
        """
        if name == HEAD and name not in self._files:
            name = EMBEDDING  # saved once where both are one
        if name not in self._files:
            raise TrainingError(f"the model's safetensors have no {name}")
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor


def open_model(folder: Path) -> TensorFile:
    """The weights of a model folder.

    Raises:
        TrainingError: The folder has no safetensors.
    """
    if (folder / SINGLE).is_file():
        return TensorFile(folder / SINGLE)
    if not (folder / INDEX).is_file():
        raise TrainingError(f"{folder} has neither {SINGLE} nor {INDEX}")
    names = json.loads((folder / INDEX).read_text())["weight_map"].values()
    return TensorFile(*(folder / name for name in sorted(set(names))))

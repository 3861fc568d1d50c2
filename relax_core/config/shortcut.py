"""A run that is given by three options instead of a file."""

from pathlib import Path
from typing import Any

from relax_core.api.errors import ConfigError
from relax_core.catalogue.entries import CATALOGUE
from relax_core.config.suggest import path_suggestion


def shortcut(model: Path, data: Path, reward: str) -> dict[str, Any]:
    """The configuration behind ``relax train --model DIR --data my.jsonl --reward my.py:score``.

    One pass over the data with the default algorithm. Batches are small (8 tasks of 8 samples), so that a small file,
    too, gives several updates. Everything else is as in a file that says nothing about it; ``--set`` changes it.

    Args:
        model: Folder in Hugging Face format; or the name of a model of the catalogue, where no folder is called so.
        data: Tasks: a Parquet file if its name ends so, or else one JSON object per line.
        reward: ``path/to/file.py:function``, or the name of a reward.

    Raises:
        ConfigError: There is no such file of data or of the reward's function.
    """
    _require_file("--data", data)
    selected: dict[str, Any] = {"name": reward}
    if ":" in reward:
        place = Path(reward.rpartition(":")[0])
        if place.suffix == ".py":
            _require_file("--reward", place)
        selected = {"name": "python", "function": reward}
    return {
        "model": {"name": str(model)} if str(model) in CATALOGUE and not model.exists() else {"path": str(model)},
        "dataset": {"name": "parquet" if data.suffix == ".parquet" else "jsonl", "path": str(data)},
        "reward": selected,
        "epochs": 1,
        "batch": {"tasks": 8, "samples_per_task": 8},
    }


def _require_file(option: str, path: Path) -> None:
    if not path.is_file():
        raise ConfigError(f"command line: {option}: there is no file {str(path)!r}{path_suggestion(path)}")

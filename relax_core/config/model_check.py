"""Whether the models of a run are each given once, and are there."""

from collections.abc import Iterator
from pathlib import Path

from relax_core.catalogue.entries import CATALOGUE, is_model
from relax_core.config.base import ModelConfig, ModelFolder
from relax_core.config.problems import Key
from relax_core.config.suggest import path_suggestion, suggestion


def check_model(model: ModelConfig) -> Iterator[tuple[Key, str]]:
    """The key that is wrong in the section ``model``, and one line about it."""
    given = [key for key in ("path", "name", "init") if getattr(model, key) is not None]
    if len(given) != 1:
        choices = "`path`, a folder in Hugging Face format, `name`, of the catalogue, or `init`, for random weights"
        yield ("model",), f"give one of {choices}" + (f"; {' and '.join(given)} are given" if given else "")
    elif model.init is None:
        if model.tokenizer != "bytes":
            text = f"{model.tokenizer} would be ignored: with `model.{given[0]}` it is in that folder"
            yield ("model", "tokenizer"), text
        yield from _check_folder("model", model)


def check_teacher(teacher: ModelFolder) -> Iterator[tuple[Key, str]]:
    """The key that is wrong in the section ``teacher``, and one line about it."""
    if (teacher.path is None) == (teacher.name is None):
        both = "" if teacher.path is None else "; path and name are given"
        yield (
            ("teacher",),
            f"give one of `path`, a folder in Hugging Face format, and `name`, of the catalogue{both}",
        )
    else:
        yield from _check_folder("teacher", teacher)


def _check_folder(section: str, model: ModelFolder) -> Iterator[tuple[Key, str]]:
    if model.name is not None:
        yield from _check_name(section, model.name)
    elif model.path is not None:
        yield from _check_path(section, model.path)


def _check_name(section: str, name: str) -> Iterator[tuple[Key, str]]:
    model = CATALOGUE.get(name)
    if model is None:
        yield (section, "name"), f"there is no model {name!r} in the catalogue{suggestion(name, CATALOGUE)}"
    elif not is_model(model.folder):
        text = f"missing model: {name} is not in {str(model.folder.parent)!r}; run `relax models add {name}`"
        yield (section, "name"), text


def _check_path(section: str, path: Path) -> Iterator[tuple[Key, str]]:
    if not path.is_dir():
        text = f"missing model: there is no folder {str(path)!r}{path_suggestion(path)}"
        yield (section, "path"), text
    elif not is_model(path):
        yield (section, "path"), f"missing model: there is no config.json in the folder {str(path)!r}"

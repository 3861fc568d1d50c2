"""Puts a model of the catalogue into its folder, whole or not at all."""

from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from relax_core.api.errors import ConfigError, PluginError, RelaxError
from relax_core.catalogue.download import download
from relax_core.catalogue.entries import CatalogueModel, is_model
from relax_core.checkpoint.files import synchronise


def add_model(model: CatalogueModel, folder: Path) -> None:
    """Downloads and converts a model beside its folder, which gets its name when everything is in it.

    Args:
        model: Which one.
        folder: Where it shall be; must not be there, or be empty.

    Raises:
        PluginError: What converts models is not installed.
        ConfigError: Something else is in the folder.
        RelaxError: The model cannot be fetched, converted or written.
    """
    for package in ("accelerate", "gguf"):
        if find_spec(package) is None:
            raise PluginError(f'relax models add needs {package}: pip install "relax-core[models]"')
    try:
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} is there already, and is no model")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as beside:
            _make(model, Path(beside)).rename(folder)
    except OSError as error:
        if not is_model(folder):  # otherwise another process was faster
            raise RelaxError(f"model {model.name} cannot be written to {folder}: {error}") from error


def _make(model: CatalogueModel, beside: Path) -> Path:
    file = download(model, beside)
    # Only now: these import torch and transformers.
    from transformers.utils import logging as transformers_logging

    from relax_core.catalogue.convert import convert_gguf

    transformers_logging.disable_progress_bar()
    made = beside / "model"
    convert_gguf(file, made)
    for path in made.iterdir():
        synchronise(path)
    return made

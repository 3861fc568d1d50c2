"""What a model's folder says of it in JSON, read without transformers: encoders and configurations ask here."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from relax_core.api.context import ModelSource
from relax_core.api.errors import ConfigError

PROCESSOR = "processor_config.json"
PREPROCESSOR = "preprocessor_config.json"
VIDEO_PREPROCESSOR = "video_preprocessor_config.json"
PREPROCESSOR_FILES = (PROCESSOR, PREPROCESSOR, VIDEO_PREPROCESSOR)
"""What says how media become inputs; whoever writes a folder of the same model writes these, too."""


def tower_config(source: ModelSource, sense: str, verb: str, known: Iterable[str]) -> tuple[str, Mapping[str, Any]]:
    """The type of a model that sees or hears, and what it says of its tower.

    Args:
        source: The model.
        sense: ``vision`` or ``audio``: as the tower is called, and the encoder for it.
        verb: What a model with such a tower does.
        known: Types of models that the encoder knows.

    Raises:
        ConfigError: The model has no such tower, or is of another type.
    """
    config = _model_config(source)
    model_type, tower = config.get("model_type"), config.get(f"{sense}_config")
    known = list(known)
    if model_type not in known or tower is None:
        why = f"does not {verb}" if tower is None else f"{verb}s in a way that is not known here"
        raise ConfigError(
            f"encoders: {sense}: the model in {str(source.path)!r} is a {model_type}, which {why}; "
            f"models that do: {', '.join(known)}"
        )
    return model_type, tower


def preprocessor_config(source: ModelSource, part: str) -> Mapping[str, Any]:
    """What the folder says of a part of transformers' processor; empty where it says nothing.

    Args:
        source: The model.
        part: ``image_processor``, ``video_processor`` or ``feature_extractor``, as in ``processor_config.json``.

    Raises:
        ConfigError: A file that is there is no mapping.
    """
    whole = _read(source.path / PROCESSOR) or {}
    if part in whole:
        found: Mapping[str, Any] = whole[part]
        return found
    return _read(source.path / (VIDEO_PREPROCESSOR if part == "video_processor" else PREPROCESSOR)) or {}


def _model_config(source: ModelSource) -> Mapping[str, Any]:
    """``config.json``; of a model of several parts, that of the one which reads prompts and writes text.

    Settings with their defaults need not be in it.

    Raises:
        ConfigError: It is not there, or no mapping.
    """
    config = _read(source.path / "config.json")
    if config is None:
        raise ConfigError(f"model: there is no config.json in {str(source.path)!r}")
    part: Mapping[str, Any] = config.get("thinker_config", config)
    return part


def _read(path: Path) -> dict[str, Any] | None:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"model: {path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"model: {path} holds no mapping")
    return found

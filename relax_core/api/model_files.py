"""What a model's folder says of it in JSON, read without transformers: encoders and configurations ask here."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relax_core.api.context import ModelSource
from relax_core.api.errors import ConfigError


def model_config(source: ModelSource) -> Mapping[str, Any]:
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


def preprocessor_config(source: ModelSource, part: str) -> Mapping[str, Any]:
    """What the folder says of a part of transformers' processor; empty where it says nothing.

    Args:
        source: The model.
        part: ``image_processor``, ``video_processor`` or ``feature_extractor``, as in ``processor_config.json``.

    Raises:
        ConfigError: A file that is there is no mapping.
    """
    whole = _read(source.path / "processor_config.json") or {}
    if part in whole:
        found: Mapping[str, Any] = whole[part]
        return found
    name = "video_preprocessor_config.json" if part == "video_processor" else "preprocessor_config.json"
    return _read(source.path / name) or {}


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

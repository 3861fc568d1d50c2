"""Tasks from a file with one JSON object per line."""

import json
from array import array
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from relax_core.api.context import Context
from relax_core.api.dataset import Dataset
from relax_core.api.errors import ConfigError
from relax_core.api.rows import Task
from relax_core.datasets.config import JsonlDatasetConfig
from relax_core.suggestions import did_you_mean

LABEL = "label"
"""Key of a label that a task may have, where no other is chosen."""


class JsonlDataset(Dataset):
    """Reads the whole file once, checks every line, and keeps only where each begins.

    Half surrogate pairs, which no tokenizer can encode, become U+FFFD; the lines are counted as
    ``dataset/lone_surrogates``.

    Raises:
        ConfigError: With file, line and reason, when a line is not a task; when there is no file or no task.
    """

    def __init__(self, config: JsonlDatasetConfig, context: Context) -> None:
        self.config = config
        self._offsets = array("q")
        self._lines = array("q")
        digest = sha256(json.dumps([config.prompt_key, config.label_key, config.metadata_key]).encode())
        try:
            self._index(digest, context)
        except OSError as error:
            raise ConfigError(f"dataset.path: {config.path}: {error.strerror}") from error
        if not self._offsets:
            raise ConfigError(f"dataset.path: {config.path} has no tasks")
        self._fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(f"task {index} of {len(self)}")
        with self.config.path.open("rb") as file:
            file.seek(self._offsets[index])
            row, _ = self._parse(file.readline(), self._lines[index])
        return self._task(index, row, self._lines[index])

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def _index(self, digest: Any, context: Context) -> None:
        offset = 0
        with self.config.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                digest.update(line)
                if line.strip():
                    row, repaired = self._parse(line, number)
                    self._task(len(self._offsets), row, number)
                    if repaired:
                        context.count("dataset/lone_surrogates", 1)
                    self._offsets.append(offset)
                    self._lines.append(number)
                offset += len(line)

    def _parse(self, line: bytes, number: int) -> tuple[dict[str, Any], bool]:
        """The object in a line, and whether half surrogate pairs had to be replaced in it."""
        try:
            row = json.loads(line.decode("utf-8-sig"), parse_constant=_refuse_constant)
        except ValueError as error:
            raise self._error(number, f"not JSON in UTF-8: {error}") from error
        if not isinstance(row, dict):
            raise self._error(number, f"must be a JSON object, but is of type {type(row).__name__}")
        text = json.dumps(row, ensure_ascii=False)
        whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return (row, False) if whole == text else (json.loads(whole), True)

    def _task(self, index: int, row: dict[str, Any], number: int) -> Task:
        config = self.config
        if config.prompt_key not in row:
            raise self._error(number, f"has no key {config.prompt_key!r}{did_you_mean(config.prompt_key, row)}")
        if config.label_key is not None and config.label_key not in row:
            raise self._error(number, f"has no key {config.label_key!r}{did_you_mean(config.label_key, row)}")
        problem = prompt_problem(row[config.prompt_key])
        if problem:
            raise self._error(number, f"{config.prompt_key!r} {problem}")
        label = row.get(config.label_key or LABEL)
        return Task(index, row[config.prompt_key], label, self._metadata(row, number))

    def _metadata(self, row: dict[str, Any], number: int) -> Mapping[str, Any]:
        key = self.config.metadata_key
        if key is None:
            used = {self.config.prompt_key, self.config.label_key or LABEL}
            return {name: value for name, value in row.items() if name not in used}
        if key not in row:
            raise self._error(number, f"has no key {key!r}{did_you_mean(key, row)}")
        metadata = row[key]
        if not isinstance(metadata, dict):
            raise self._error(number, f"{key!r} must be an object, but is of type {type(metadata).__name__}")
        return metadata

    def _error(self, number: int, reason: str) -> ConfigError:
        return ConfigError(f"{self.config.path}:{number}: {reason}")


def prompt_problem(prompt: Any) -> str | None:
    """Why a value is neither a text nor a list of chat messages; ``None`` when it is."""
    if isinstance(prompt, str):
        return None if prompt else "is empty"
    if not isinstance(prompt, list) or not prompt:
        return "must be a string or a list of messages"
    for position, message in enumerate(prompt):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return f"[{position}] must be an object with the key 'role'"
        if not isinstance(message.get("content"), str | list):
            return f"[{position}] must have 'content', a string or a list of parts"
    return None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")

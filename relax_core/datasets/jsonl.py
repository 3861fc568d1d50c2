"""Tasks from a file with one JSON object per line."""

import json
from array import array
from hashlib import sha256
from typing import Any

from relax_core.api.context import Context
from relax_core.api.dataset import Dataset
from relax_core.api.errors import ConfigError
from relax_core.api.rows import Task
from relax_core.datasets.config import JsonlDatasetConfig
from relax_core.datasets.records import task_of


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
        digest = sha256(config.fingerprint.encode())
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
        try:
            return task_of(index, row, self.config, self.config.path.parent)
        except ValueError as error:
            raise self._error(number, str(error)) from None

    def _error(self, number: int, reason: str) -> ConfigError:
        return ConfigError(f"{self.config.path}:{number}: {reason}")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")

"""Tasks from a Parquet file, one per row."""

import hashlib
import json
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from relax_core.api.context import Context
from relax_core.api.dataset import Dataset
from relax_core.api.errors import ConfigError, PluginError
from relax_core.api.rows import Task
from relax_core.datasets.config import ParquetDatasetConfig
from relax_core.datasets.records import LABEL, has_pair, task_of
from relax_core.suggestions import did_you_mean

ROWS_AT_ONCE = 1024


class ParquetDataset(Dataset):
    """Reads the columns that are used, checks every row, and keeps them as Arrow arrays.

    Chat messages are a list of structs. What is null in a struct of the prompt counts as absent, since a Parquet file
    can leave out no field: chat templates ask whether a field is there.

    Raises:
        PluginError: pyarrow is not installed.
        ConfigError: With file, row (from 0) and reason, when a row is not a task; when there is no such file, column
            or task.
    """

    def __init__(self, config: ParquetDatasetConfig, context: Context) -> None:
        if find_spec("pyarrow") is None:
            raise PluginError('dataset parquet needs pyarrow: pip install "relax-core[parquet]"')
        self.config = config
        self._table = _read(config)
        for index, record in self._records():
            self._task(index, record)
        if not len(self):
            raise ConfigError(f"dataset.path: {config.path} has no tasks")
        self._fingerprint = _fingerprint(config)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(f"task {index} of {len(self)}")
        return self._task(index, self._table.slice(index, 1).to_pylist(maps_as_pydicts="strict")[0])

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def _records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for start in range(0, len(self), ROWS_AT_ONCE):
            yield from enumerate(self._table.slice(start, ROWS_AT_ONCE).to_pylist(maps_as_pydicts="strict"), start)

    def _task(self, index: int, record: dict[str, Any]) -> Task:
        try:
            media = set(self.config.media.values())
            for name, value in record.items():
                if name not in media:
                    _require_json(name, value)
            pair = self.config.pair if has_pair(record, self.config) else ()
            texts = {key: _without_nulls(record[key]) for key in (self.config.prompt_key, *pair)}
            return task_of(index, {**record, **texts}, self.config, self.config.path.parent)
        except ValueError as error:
            raise ConfigError(f"{self.config.path}: row {index}: {error}") from None


def _read(config: ParquetDatasetConfig) -> Any:
    """The used columns of the file as an Arrow table."""
    import pyarrow
    from pyarrow import parquet

    try:
        with config.path.open("rb") as raw, parquet.ParquetFile(raw) as file:
            table = file.read(_columns(config, file.schema_arrow.names))
        table.validate(full=True)
    except OSError as error:
        raise ConfigError(f"dataset.path: {config.path}: {error.strerror or error}") from error
    except pyarrow.ArrowException as error:
        raise ConfigError(f"dataset.path: {config.path} is no sound Parquet file: {error}") from error
    return table


def _columns(config: ParquetDatasetConfig, there: list[str]) -> list[str]:
    """Names of the columns to read: all of them where every one that is no prompt and no label is metadata."""
    for key in (*config.required, *config.media.values()):
        if key not in there:
            raise ConfigError(f"dataset.path: {config.path} has no column {key!r}{did_you_mean(key, there)}")
    if config.metadata_key is None:
        return there
    answers = config.pair if has_pair(there, config) else (config.label_key or LABEL,)
    used = (config.prompt_key, *answers, config.metadata_key, *config.media.values())
    return [name for name in there if name in used]


def _fingerprint(config: ParquetDatasetConfig) -> str:
    with config.path.open("rb") as file:
        return hashlib.sha256(config.fingerprint.encode() + hashlib.file_digest(file, "sha256").digest()).hexdigest()


def _require_json(key: str, value: Any) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{key!r} is not a JSON value: {error}") from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value

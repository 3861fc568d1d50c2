"""The batches a run trained on, whole, so that any of its updates can be looked at and computed again."""

import itertools
import json
import os
import re
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import Column, ColumnSpec, Table
from relax_core.api.errors import RelaxError
from relax_core.dataflow.batching import UpdatePlan

BATCHES = "batches"
"""Folder of the store within a run's folder."""

FILE = re.compile(r"batch-(\d{6,})\.npz")
FORMAT = 1
SCALARS = ("batch", "first_update", "version", "temperature")
HEADER = "header"

_Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class BatchRecord:
    """One batch of the main stage and the optimizer steps that were made on it.

    Args:
        batch: Number of the batch, from 0.
        first_update: Number of its first optimizer step, from 1.
        version: The trainer's version at its start.
        temperature: Of every log-probability.
        table: All rows, with what the actor read and what people look at.
        updates: The optimizer steps, in order; they refer to rows of the table by position.
    """

    batch: int
    first_update: int
    version: int
    temperature: float
    table: Table
    updates: tuple[UpdatePlan, ...]

    @property
    def last_update(self) -> int:
        """Number of its last optimizer step."""
        return self.first_update + len(self.updates) - 1


class BatchStore:
    """Records ``batch-000000.npz``, … of one run; one writer at a time.

    Args:
        directory: Folder of the records; made when needed.
        keep: Newest records to keep, at least 1.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.directory = directory
        self.keep = keep

    def write(self, record: BatchRecord) -> None:
        """Writes a record, then removes those beyond ``keep``.

        Records of later batches are removed too: a resumed run has begun anew before them.

        Raises:
            RelaxError: The disk failed.
        """
        final = self._path(record.batch)
        aside = final.with_name(f".{final.name}.partial-{os.getpid()}")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            # Not synchronised: after a power failure a record may be broken, which is told when it is read.
            with aside.open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, **_arrays_of(record))
            aside.rename(final)
            self._remove_others(record.batch)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise RelaxError(f"batch record {final} could not be written: {error}") from error

    def numbers(self) -> list[int]:
        """Numbers of the batches that are stored, ascending."""
        return sorted(int(name[1]) for path in self._files() if (name := FILE.fullmatch(path.name)))

    def load(self, number: int) -> BatchRecord:
        """The record of a batch.

        Raises:
            RelaxError: It is not stored, or its file is damaged.
        """
        with _reading(self._path(number)) as file:
            return _record_of(file)

    def updates(self, number: int) -> range:
        """Numbers of the optimizer steps of a batch, without reading its rows.

        Raises:
            RelaxError: As :meth:`load`.
        """
        with _reading(self._path(number)) as file:
            header = _header(file)
            first = int(header["first_update"])
            return range(first, first + len(header["micro_batches"]))

    def covering(self, update: int) -> int | None:
        """Number of the stored batch with an optimizer step of that number; ``None`` where none is.

        Raises:
            RelaxError: A file that was looked at is damaged.
        """
        numbers = self.numbers()
        place = bisect_right(numbers, update, key=lambda number: self.updates(number).start) - 1
        found = place >= 0 and update in self.updates(numbers[place])
        return numbers[place] if found else None

    def _path(self, number: int) -> Path:
        return self.directory / f"batch-{number:06d}.npz"

    def _files(self) -> list[Path]:
        return list(self.directory.iterdir()) if self.directory.is_dir() else []

    def _remove_others(self, newest: int) -> None:
        """Removes later batches, the oldest beyond ``keep``, and what a kill left of a file being written."""
        numbers = self.numbers()
        kept = [number for number in numbers if number <= newest][-self.keep :]
        leftovers = [path for path in self._files() if path.name.startswith(".")]
        for path in (*leftovers, *(self._path(number) for number in numbers if number not in kept)):
            path.unlink(missing_ok=True)


@contextmanager
def _reading(path: Path) -> Iterator[_Arrays]:
    """An open record file; members are read when they are asked for.

    Raises:
        RelaxError: In place of what reading a file that is absent, cut off or changed raises.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            yield file
    except FileNotFoundError as error:
        raise RelaxError(f"batch record {path}: there is no such file") from error
    except (OSError, EOFError, ValueError, TypeError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        reason = str(error).partition("\n")[0]
        raise RelaxError(f"batch record {path} is damaged: {type(error).__name__}: {reason}") from error


def _arrays_of(record: BatchRecord) -> dict[str, npt.NDArray[Any]]:
    """A record as named arrays; all that is no array is JSON in the first of them."""
    table = record.table
    header = {
        "format": FORMAT,
        **{name: getattr(record, name) for name in SCALARS},
        "columns": [asdict(column.spec) for column in table.columns.values()],
        "micro_batches": [[[len(rows) for rows in rank] for rank in update.ranks] for update in record.updates],
    }
    arrays: dict[str, npt.NDArray[Any]] = {HEADER: np.frombuffer(json.dumps(header).encode(), np.uint8)}
    arrays |= {"ids": table.ids, "groups": table.groups}
    arrays |= {f"versions/{name}": versions for name, versions in table.versions.items()}
    for name, column in table.columns.items():
        arrays[f"values/{name}"] = column.values
        if column.offsets is not None:
            arrays[f"offsets/{name}"] = column.offsets
    for number, update in enumerate(record.updates):
        arrays |= {f"update {number}/{name}": array for name, array in _update_arrays(update).items()}
    return arrays


def _update_arrays(update: UpdatePlan) -> dict[str, npt.NDArray[Any]]:
    """The positions of all micro-batches end to end, and the plan's other arrays by their names."""
    rows = [rows for rank in update.ranks for rows in rank]
    others = {field.name: getattr(update, field.name) for field in fields(update) if field.name != "ranks"}
    present = {name: array for name, array in others.items() if array is not None}
    return {"rows": np.concatenate([np.empty(0, np.int64), *rows]), **present}


def _header(file: _Arrays) -> dict[str, Any]:
    header = json.loads(file[HEADER].tobytes())
    if header["format"] != FORMAT:
        raise ValueError(f"format {header['format']}, but this version of Relax reads {FORMAT}")
    return dict(header)


def _record_of(file: _Arrays) -> BatchRecord:
    """Undoes :func:`_arrays_of`."""
    header = _header(file)
    columns = {}
    for fields_of_spec in header["columns"]:
        spec = ColumnSpec(**fields_of_spec | {"trailing": tuple(fields_of_spec["trailing"])})
        offsets = file[f"offsets/{spec.name}"] if spec.has_offsets else None
        columns[spec.name] = Column(spec, file[f"values/{spec.name}"], offsets)
    table = Table(file["ids"], file["groups"], columns, _below(file, "versions/"))
    updates = [
        _update_of(_below(file, f"update {number}/"), lengths) for number, lengths in enumerate(header["micro_batches"])
    ]
    scalars = {name: header[name] for name in SCALARS}
    return BatchRecord(**scalars, table=table, updates=tuple(updates))


def _below(file: _Arrays, prefix: str) -> dict[str, npt.NDArray[Any]]:
    return {name.removeprefix(prefix): file[name] for name in file if name.startswith(prefix)}


def _update_of(arrays: dict[str, npt.NDArray[Any]], lengths: list[list[int]]) -> UpdatePlan:
    """Undoes :func:`_update_arrays`, given the length of each rank's micro-batches."""
    rows, start = arrays.pop("rows"), 0
    ranks = []
    for sizes in lengths:
        ends = start + np.cumsum([0, *sizes])
        ranks.append(tuple(rows[first:last] for first, last in itertools.pairwise(ends)))
        start = int(ends[-1])
    return UpdatePlan(ranks=tuple(ranks), **arrays)

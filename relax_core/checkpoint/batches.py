"""The batches a run trained on, whole, so that any of its updates can be looked at and computed again."""

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from relax_core.api.columns import Column, ColumnSpec, Table
from relax_core.api.errors import RelaxError
from relax_core.checkpoint.arrays import read_arrays, read_tree, write_arrays
from relax_core.dataflow.batching import UpdatePlan

BATCHES = "batches"
"""Folder of the store within a run's folder."""

FILE = re.compile(r"batch-(\d{6,})\.npz")
FORMAT = 1
SCALARS = ("batch", "first_update", "version", "temperature")


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
        media: What rows name as their media, by key; see :data:`relax_core.dataflow.columns.MEDIA`.
        republished: Versions that make no row older; see :class:`relax_core.dataflow.staleness.Staleness`.
    """

    batch: int
    first_update: int
    version: int
    temperature: float
    table: Table
    updates: tuple[UpdatePlan, ...]
    media: Mapping[str, bytes] = field(default_factory=dict)
    republished: tuple[int, ...] = ()

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
            write_arrays(aside, _tree_of(record), compressed=True)
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
        return _record_of(self._read(number, read_arrays))

    def updates(self, number: int) -> range:
        """Numbers of the optimizer steps of a batch, without reading its rows.

        Raises:
            RelaxError: As :meth:`load`.
        """
        tree = self._read(number, read_tree)
        first = int(tree["first_update"])
        return range(first, first + len(tree["updates"]))

    def covering(self, update: int) -> int | None:
        """Number of the stored batch with an optimizer step of that number; ``None`` where none is.

        Raises:
            RelaxError: A file that was looked at is damaged.
        """
        numbers = self.numbers()
        place = bisect_right(numbers, update, key=lambda number: self.updates(number).start) - 1
        found = place >= 0 and update in self.updates(numbers[place])
        return numbers[place] if found else None

    def _read(self, number: int, read: Callable[[Path], Mapping[str, Any]]) -> Mapping[str, Any]:
        path = self._path(number)
        try:
            tree = read(path)
        except FileNotFoundError as error:
            raise RelaxError(f"batch record {path}: there is no such file") from error
        except (OSError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise RelaxError(f"batch record {path} is damaged: {reason}") from error
        if tree["format"] != FORMAT:
            raise RelaxError(f"batch record {path} has format {tree['format']}; this version of Relax reads {FORMAT}")
        return tree

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


def _tree_of(record: BatchRecord) -> dict[str, Any]:
    """A record as mappings and lists with arrays among them."""
    table = record.table
    columns = [
        {"spec": asdict(column.spec), "values": column.values, "offsets": column.offsets}
        for column in table.columns.values()
    ]
    rows = {"ids": table.ids, "groups": table.groups, "versions": table.versions, "columns": columns}
    updates = [{field.name: getattr(update, field.name) for field in fields(update)} for update in record.updates]
    scalars = {name: getattr(record, name) for name in SCALARS}
    media = {key: np.frombuffer(data, np.uint8) for key, data in record.media.items()}
    lists = {"updates": updates, "republished": list(record.republished)}
    return {"format": FORMAT, **scalars, "table": rows, "media": media, **lists}


def _record_of(tree: Mapping[str, Any]) -> BatchRecord:
    """Undoes :func:`_tree_of`."""
    rows = tree["table"]
    columns = [Column(_spec_of(**each["spec"]), each["values"], each["offsets"]) for each in rows["columns"]]
    table = Table(rows["ids"], rows["groups"], {column.spec.name: column for column in columns}, rows["versions"])
    updates = tuple(UpdatePlan(**update | {"ranks": tuple(map(tuple, update["ranks"]))}) for update in tree["updates"])
    media = {key: data.tobytes() for key, data in tree.get("media", {}).items()}
    republished = tuple(tree.get("republished", ()))
    scalars = {name: tree[name] for name in SCALARS}
    return BatchRecord(**scalars, table=table, updates=updates, media=media, republished=republished)


def _spec_of(trailing: Sequence[int], **others: Any) -> ColumnSpec:
    return ColumnSpec(trailing=tuple(trailing), **others)

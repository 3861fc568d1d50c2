"""Keeps whole batches, with what the trainer computed on them, for those who look at a run or replay it."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import Column, Table
from relax_core.checkpoint.batches import BatchRecord
from relax_core.dataflow import columns as core


class BatchRecorder:
    """Writes every so many batches as records.

    Args:
        write: Stores a record.
        every: Batches between stored ones.
        temperature: Of every log-probability.
    """

    def __init__(self, write: Callable[[BatchRecord], None], every: int, temperature: float) -> None:
        self._write = write
        self._every = every
        self._temperature = temperature

    def keeps(self, batch: int) -> bool:
        """Whether the batch of that number is kept."""
        return batch % self._every == 0

    def write(self, record: BatchRecord, logprobs: Mapping[int, npt.NDArray[np.generic]]) -> None:
        """Stores a batch that is trained, with what the trainer computed on it, by row id."""
        table = record.table
        if logprobs:
            table = table.with_column(_column(table, logprobs))
        self._write(replace(record, table=table, temperature=self._temperature))


def _column(table: Table, logprobs: Mapping[int, npt.NDArray[np.generic]]) -> Column:
    lengths = table["loss_mask"].lengths
    blank = [np.zeros(length, np.float32) for length in lengths]
    rows = zip(table.ids.tolist(), blank, strict=True)
    return Column.of(core.TRAINER_LOGPROBS, [logprobs.get(row, nothing) for row, nothing in rows])

"""Batches that the benchmark of transports carries, and how two processes take turns with them."""

import mmap
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import Column, ColumnSpec, Level

IN_FLIGHT = 8
"""Batches that may be produced and not consumed, for every way to carry them."""

PAGE = 4096
"""Bytes; consumers read one of each page."""

TOKENS = 1024
TEXT = 200
"""Entries of a per-token column, and bytes of a text, in each row of the mixed batches."""

PATIENCE = 60.0
"""Seconds after which one side gives the other up."""

Array = npt.NDArray[np.generic]
Touch = Callable[[Array], None]


@dataclass(frozen=True)
class Shape:
    """What a batch is made of.

    Args:
        rows: Rows of a batch, which is one group.
        row_bytes: Size of a row of one column of bytes; 0: a mixture of per-token and per-row columns and a text.
    """

    rows: int
    row_bytes: int = 0


SHAPES = {
    "r1K_b256": Shape(256, 1 << 10),
    "r64K_b64": Shape(64, 1 << 16),
    "r4M_b4": Shape(4, 1 << 22),
    "mix_b64": Shape(64),
    "mix_b1": Shape(1),
}

MIXTURE: dict[str, tuple[str, Level]] = {
    "tokens": ("int64", "token"),
    "logprobs": ("float32", "token"),
    "advantages": ("float32", "token"),
    "mask": ("int8", "token"),
    "reward": ("float32", "row"),
    "task": ("int64", "row"),
}


def batch(shape: Shape) -> list[Column]:
    """Columns of one batch, the same every time."""
    random = np.random.default_rng(0)
    if shape.row_bytes:
        spec = ColumnSpec("x", "uint8", "row", (shape.row_bytes,))
        return [Column(spec, random.integers(0, 100, (shape.rows, shape.row_bytes), np.uint8))]
    ends = np.arange(shape.rows + 1)
    columns = []
    for name, (dtype, level) in MIXTURE.items():
        length = TOKENS if level == "token" else 1
        values = random.integers(0, 100, shape.rows * length).astype(dtype)
        columns.append(Column(ColumnSpec(name, dtype, level), values, ends * length if level == "token" else None))
    text = np.full(shape.rows * TEXT, ord("m"), np.uint8)
    return [*columns, Column(ColumnSpec("text", "uint8", "row", (), True), text, ends * TEXT)]


def values_bytes(columns: Sequence[Column]) -> int:
    """Bytes that are carried, offsets apart: no other way than Relax's has them."""
    return sum(column.values.nbytes for column in columns)


def as_arrays(columns: Sequence[Column]) -> dict[str, Array]:
    """The same batch for those who know dense arrays only: one of ``[rows, ...]`` each, which all rows here fit."""
    return {column.spec.name: column.values.reshape(len(column), -1) for column in columns}


def touch(array: Array) -> None:
    """Reads a byte of each page."""
    array.reshape(-1).view(np.uint8)[::PAGE].sum()


class Turns:
    """How many batches are produced and consumed, in a file that both sides have mapped.

    Args:
        path: Of the file.
    """

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._counts = np.frombuffer(mmap.mmap(file.fileno(), 32), np.int64)

    @classmethod
    def file(cls) -> Path:
        """A new file."""
        descriptor, path = tempfile.mkstemp(prefix="relax-turns-")
        os.write(descriptor, bytes(32))
        os.close(descriptor)
        return Path(path)

    @property
    def started(self) -> bool:
        """Whether the first batch, which is not counted, is through."""
        return bool(self._counts[1])

    def go(self) -> None:
        """Lets the producer begin with what counts."""
        self._counts[3] = 1

    def produce(self, put: Callable[[], None], seconds: float) -> tuple[float, int]:
        """Produces for so long once it may; returns when it began and how many batches it were."""
        put()
        self._counts[0] = 1
        _until(lambda: self.started and bool(self._counts[3]), 0.001)
        start, number = time.monotonic(), 0
        while time.monotonic() - start < seconds:
            _until(lambda: self._counts[0] - self._counts[1] < IN_FLIGHT, 0.0002)
            put()
            number += 1
            self._counts[0] += 1
        self._counts[2] = number + 1
        return start, number

    def consume(self, get: Callable[[Touch], None]) -> float:
        """Consumes until nothing is left; returns when that was."""
        number = 0
        while not self._counts[2] or number < self._counts[2]:
            if self._counts[0] <= number:
                time.sleep(0.0001)
                continue
            get(touch)
            number += 1
            self._counts[1] = number
        return time.monotonic()


def _until(condition: Callable[[], bool], pause: float) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the other side has stood still for {PATIENCE:g} s")
        time.sleep(pause)

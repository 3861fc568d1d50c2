"""The rows that the rules for algorithms are tried on: exactly the columns that the algorithm declares."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from relax_core.api.algorithm import ADVANTAGES, Algorithm, Requirements, Trajectories
from relax_core.api.columns import Column, ColumnSpec, Table
from relax_core.api.rows import StopReason
from relax_core.api.tokens import Tokens
from relax_core.testing.algorithm.tokens import make_tokens

Row = dict[str, Any]
GROUPS = np.array([0, 1, 0, 2, 1, 0, 2, 1, 0])
REWARDS = np.array([1.0, 0.5, 0.0, 0.3, 0.0, 1.0, 0.3, 1.0, 0.25])
"""Group 1 has a reward at its mean, group 2 has equal ones."""
LENGTHS = (3, 1, 4, 2, 6, 1, 5, 2, 3)


class AlgorithmRows:
    """What the rules share: which algorithm, and rows for it."""

    device: str = "cpu"
    """Where the tokens are that the loss sees."""

    @pytest.fixture
    def algorithm(self) -> Algorithm:
        """The algorithm under test."""
        raise NotImplementedError("override the fixture `algorithm`")

    def entry(self, name: str, logprobs: npt.NDArray[np.float64], noise: npt.NDArray[np.float64]) -> npt.ArrayLike:
        """A row's entry of a column that the algorithm reads: as long as ``logprobs``, or a number.

        ``noise`` is all 0 for rows to which every policy gives the same probability.
        """
        if name.endswith("_logprobs"):
            return logprobs + noise
        if name == "tokens":
            return np.arange(len(logprobs))
        if name == "loss_mask":
            return np.ones(len(logprobs), np.bool_)
        if name == "preferred":
            return bool(len(logprobs) % 2)
        if name == "stop_reason":
            return np.int8(StopReason.LENGTH if len(logprobs) > 4 else StopReason.STOP)
        raise NotImplementedError(f"override `entry` for the column {name!r}")

    def make_rows(self, algorithm: Algorithm, noise: float = 0.1) -> list[Row]:
        """Nine rows of three groups with what the algorithm declares: outputs, what it reads, what it produces."""
        asked = requirements(algorithm)
        generator = np.random.default_rng(0)
        rows: list[Row] = []
        for length in LENGTHS:
            logprobs = -generator.exponential(size=length)
            row: Row = {name: np.abs(generator.normal(size=length)) for name in asked.outputs}
            row["logprobs"] = logprobs
            for name in sorted(asked.needs | asked.prepare_reads):
                row[name] = self.entry(name, logprobs, noise * generator.normal(size=length))
            rows.append(row)
        produced = prepare(algorithm, rows, REWARDS, GROUPS) if asked.produces else {}
        for place, row in enumerate(rows):
            row.update({name: column[place] for name, column in produced.items()})
        return rows

    def make_tokens(self, algorithm: Algorithm, rows: Sequence[Row], dtype: torch.dtype = torch.float32) -> Tokens:
        """The rows as one micro-batch, without the columns that only ``prepare`` reads."""
        seen = seen_by_loss(algorithm, rows)
        return make_tokens(seen, GROUPS, requirements(algorithm).outputs, dtype, self.device)


def requirements(algorithm: Algorithm) -> Requirements:
    """What the algorithm declares."""
    asked: Requirements = algorithm.config.requirements()
    return asked


def seen_by_loss(algorithm: Algorithm, rows: Sequence[Row]) -> list[Row]:
    """The rows with the columns that reach the loss."""
    asked = requirements(algorithm)
    unseen = asked.prepare_reads - asked.needs - asked.outputs
    return [{name: value for name, value in row.items() if name not in unseen} for row in rows]


def skip_without_advantages(algorithm: Algorithm) -> None:
    """Skips a rule about advantages for an algorithm that has none."""
    if ADVANTAGES.name not in [spec.name for spec in requirements(algorithm).produces]:
        pytest.skip("produces no advantages")


def prepare(
    algorithm: Algorithm, rows: Sequence[Row], rewards: npt.NDArray[np.float64], groups: npt.NDArray[np.int64]
) -> dict[str, Column]:
    """What ``prepare`` gives, one entry per trajectory, in the declared types."""
    asked = requirements(algorithm)
    produced = algorithm.prepare(trajectories(asked, rows, rewards, groups))
    assert set(produced) == {spec.name for spec in asked.produces}, (
        f"prepare() gives {sorted(produced)}, not `produces`"
    )
    return {spec.name: _as_column(spec, produced[spec.name]) for spec in asked.produces}


def trajectories(
    asked: Requirements, rows: Sequence[Row], rewards: npt.NDArray[np.float64], groups: npt.NDArray[np.int64]
) -> Trajectories:
    """The rows as ``prepare`` sees them, in memory of their own: reading a column that is not declared fails."""
    ids = np.arange(len(rows))
    columns = {name: _column([row[name] for row in rows], name) for name in asked.prepare_reads}
    declared = Declared(columns, "prepare() reads the column", "prepare_reads")
    return Trajectories(rewards.copy(), groups.copy(), Table(ids, groups.copy(), declared))


class Declared(dict[str, Any]):
    """Columns by name; remembers which were read, and says so when one is not there.

    Args:
        values: The declared columns.
        reader: Who reads, for the message.
        where: Where a column must be declared.
    """

    def __init__(self, values: Mapping[str, Any], reader: str, where: str) -> None:
        super().__init__(values)
        self.read: set[str] = set()
        self._reader, self._where = reader, where

    def __getitem__(self, name: str) -> Any:
        assert name in self, f"{self._reader} {name!r}, which is not among `{self._where}` of requirements()"
        self.read.add(name)
        return super().__getitem__(name)


def _as_column(spec: ColumnSpec, entries: Any) -> Column:
    return entries if isinstance(entries, Column) else Column.of(spec, list(entries))


def _column(entries: Sequence[npt.ArrayLike], name: str) -> Column:
    first = np.asarray(entries[0])
    return Column.of(ColumnSpec(name, first.dtype.name, "token" if first.ndim else "row"), entries)

"""The advantages role runs an algorithm's ``prepare`` and writes its columns."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from relax_core.api.algorithm import Algorithm, Requirements, Trajectories
from relax_core.api.columns import Column, ColumnSpec, Table
from relax_core.api.errors import EndOfStream, TrainingError
from relax_core.api.transport import Transport
from relax_core.roles.role import Progress, Role

MOST_GROUPS = 1024


class Advantages(Role):
    """Prepares what is ready: groups as they come, or whole batches when the algorithm's scope asks.

    Args:
        algorithm: Whose ``prepare`` runs.
        requirements: Its declared scope and columns.
        transport: Rows in and out.
        batch_groups: Groups per batch.
    """

    name = "advantages"

    def __init__(
        self, algorithm: Algorithm, requirements: Requirements, transport: Transport, batch_groups: int
    ) -> None:
        self._algorithm = algorithm
        self._requirements = requirements
        self._transport = transport
        whole = requirements.scope == "batch"
        self._minimum, self._maximum = (batch_groups, batch_groups) if whole else (1, MOST_GROUPS)

    async def step(self) -> Progress:
        """Handles all groups that are ready now."""
        try:
            lease = self._transport.take(self.name, self._minimum, self._maximum)
        except EndOfStream:
            return Progress.DONE
        if lease is None:
            return Progress.IDLE
        table = self._transport.fetch(lease, ["reward", "scored", *sorted(self._requirements.prepare_reads)])
        self._transport.write(table.ids, self._columns(table))
        self._transport.ack(lease)
        return Progress.WORKED

    def _columns(self, table: Table) -> list[Column]:
        scored = np.flatnonzero(table["scored"].values)
        rows = table.select(scored)
        _, groups = np.unique(rows.groups, return_inverse=True)
        rewards = rows["reward"].values.astype(np.float64)
        produced = self._algorithm.prepare(Trajectories(rewards, groups, rows))
        lengths = table["tokens"].lengths if "tokens" in table else None
        return [
            self._whole(spec, produced[spec.name], scored, len(table), lengths) for spec in self._requirements.produces
        ]

    def _whole(
        self,
        spec: ColumnSpec,
        produced: npt.ArrayLike | Sequence[npt.ArrayLike] | Column,
        scored: npt.NDArray[np.intp],
        rows: int,
        lengths: npt.NDArray[np.int64] | None,
    ) -> Column:
        """A column for every row: zero for those whose reward abstained, which no loss will see."""
        column = produced if isinstance(produced, Column) else Column.of(spec, produced)  # type: ignore[arg-type]
        if len(column) != len(scored):
            raise TrainingError(
                f"algorithm: prepare gave {len(column)} entries of {spec.name!r} for {len(scored)} trajectories"
            )
        if np.issubdtype(column.values.dtype, np.floating) and not np.isfinite(column.values).all():
            raise TrainingError(f"algorithm: prepare gave a value of {spec.name!r} that is not finite")
        if len(scored) == rows:
            return column
        if spec.level == "row" and not spec.has_offsets:
            values = np.zeros((rows, *spec.trailing), spec.dtype)
            values[scored] = column.values
            return Column(spec, values)
        if lengths is None:
            raise TrainingError(f"algorithm: {spec.name!r} is per token, so 'tokens' must be among prepare_reads")
        entries = [np.zeros((length, *spec.trailing), spec.dtype) for length in lengths]
        for position, row in enumerate(scored):
            entries[row] = column[position]
        return Column.of(spec, entries)

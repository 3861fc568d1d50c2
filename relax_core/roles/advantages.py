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
        per_token = [spec.name for spec in requirements.produces if spec.level == "token"]
        if per_token and "tokens" not in requirements.prepare_reads:
            raise TrainingError(f"algorithm: {per_token[0]!r} is per token, so 'tokens' must be among prepare_reads")
        self._algorithm = algorithm
        self._requirements = requirements
        self._transport = transport
        whole = requirements.scope == "batch"
        self._minimum, self._maximum = (batch_groups, batch_groups) if whole else (1, MOST_GROUPS)

    async def step(self) -> Progress:
        """Handles all groups that are ready now."""
        self.timeline.waiting(self.name)
        try:
            lease = self._transport.take(self.name, self._minimum, self._maximum, self.patience)
        except EndOfStream:
            return Progress.DONE
        if lease is None:
            return Progress.IDLE
        self.timeline.working(self.name)
        table = self._transport.fetch(lease, ["reward", "scored", *sorted(self._requirements.prepare_reads)])
        with self.timeline.span(self.name, "prepare"):
            self._transport.write(table.ids, self._columns(table), repeat=lease.attempt > 1)
        self._transport.ack(lease)
        return Progress.WORKED

    def _columns(self, table: Table) -> list[Column]:
        scored = np.flatnonzero(table["scored"].values)
        rows = table.select(scored)
        _, groups = np.unique(rows.groups, return_inverse=True)
        rewards = rows["reward"].values.astype(np.float64)
        produced = self._algorithm.prepare(Trajectories(rewards, groups, rows))
        columns = []
        for spec in self._requirements.produces:
            if spec.name not in produced:
                raise TrainingError(f"algorithm: prepare gave no {spec.name!r}, only {sorted(produced)}")
            columns.append(_whole(_checked(spec, produced[spec.name], len(scored)), scored, table))
        return columns


def _checked(spec: ColumnSpec, produced: npt.ArrayLike | Sequence[npt.ArrayLike] | Column, count: int) -> Column:
    """What ``prepare`` gave for one column, as a column of ``count`` finite entries."""
    try:
        column = produced if isinstance(produced, Column) else Column.of(spec, produced)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise TrainingError(f"algorithm: prepare gave a {spec.name!r} of the wrong form: {error}") from error
    if len(column) != count:
        raise TrainingError(f"algorithm: prepare gave {len(column)} entries of {spec.name!r} for {count} trajectories")
    if np.issubdtype(column.values.dtype, np.floating) and not np.isfinite(column.values).all():
        raise TrainingError(f"algorithm: prepare gave a value of {spec.name!r} that is not finite")
    return column


def _whole(column: Column, scored: npt.NDArray[np.intp], table: Table) -> Column:
    """The column for every row: zero for those whose reward abstained, which no loss will see."""
    spec = column.spec
    if len(scored) == len(table):
        return column
    if not spec.has_offsets:
        values = np.zeros((len(table), *spec.trailing), spec.dtype)
        values[scored] = column.values
        return Column(spec, values)
    lengths = table["tokens"].lengths if spec.level == "token" else np.zeros(len(table), np.int64)
    entries = [np.zeros((length, *spec.trailing), spec.dtype) for length in lengths]
    for position, row in enumerate(scored):
        entries[row] = column[position]
    return Column.of(spec, entries)

"""The trainer as roles see it: ranks in this process, or elsewhere. Imports no torch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from relax_core.api.columns import ColumnSpec
from relax_core.api.errors import TrainingError
from relax_core.api.trainer import Sums
from relax_core.api.transport import Lease
from relax_core.dataflow.batching import UpdatePlan


class Ranks(ABC):
    """All data-parallel ranks of one trainer; calls reach every rank and return when all have answered.

    Attributes:
        size: How many there are.
        prefers_groups: That of the trainer.
    """

    size: int
    prefers_groups: bool = False

    @abstractmethod
    async def train(self, lease: Lease, update: UpdatePlan, number: int) -> tuple[Sums, Mapping[str, float]]:
        """One optimizer step on the update's rows.

        Args:
            lease: Holds the rows; every rank fetches its own.
            update: Which rows, and how they are dealt to ranks and micro-batches.
            number: Of this update, from 1. An update that was made already is not made again: its result is returned.

        Returns:
            The sums of all ranks, and what ``apply`` told on one of them.
        """

    async def accumulate(self, lease: Lease, update: UpdatePlan) -> Sums:
        """Adds the gradients of the update's rows; any number of calls before one :meth:`apply`.

        Raises:
            TrainingError: These ranks make whole updates only.
        """
        raise TrainingError(f"{type(self).__name__} make whole updates only; set batch.streaming to false")

    async def apply(self, weight: float) -> Mapping[str, float]:
        """One optimizer step with what was accumulated, divided by ``weight``; what ``apply`` of the trainer told."""
        raise TrainingError(f"{type(self).__name__} make whole updates only; set batch.streaming to false")

    @abstractmethod
    async def forward(self, lease: Lease, update: UpdatePlan, column: ColumnSpec, version: int) -> None:
        """Writes log-probabilities of the update's rows as a column, computed by that weight version."""

"""The trainer as roles see it: ranks in this process, or elsewhere. Imports no torch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import ColumnSpec
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

    async def train(self, lease: Lease, update: UpdatePlan, number: int) -> tuple[Sums, Mapping[str, float]]:
        """One optimizer step on the update's rows: :meth:`accumulate`, then :meth:`apply`."""
        await self.accumulate(lease, update, number, first=True)
        return await self.apply(number)

    @abstractmethod
    async def accumulate(self, lease: Lease, update: UpdatePlan, number: int, first: bool) -> None:
        """Adds the gradients of rows; any number of calls before one :meth:`apply`.

        Args:
            lease: Holds the rows; every rank fetches its own.
            update: Which rows, and how they are dealt to ranks and micro-batches.
            number: Of the update they are for, from 1. For one that was made already nothing is computed.
            first: Whatever was accumulated before is forgotten: whoever asked for it is gone.
        """

    @abstractmethod
    async def apply(self, number: int) -> tuple[Sums, Mapping[str, float]]:
        """One optimizer step with what was accumulated; the same result again for an update that was made already.

        Returns:
            The sums of all ranks, and what ``apply`` of the trainer told on one of them.
        """

    async def logprobs(self) -> Mapping[int, npt.NDArray[np.generic]]:
        """By row id what the trainer computed on the present batch, if that is kept; see
        :class:`relax_core.roles.seen_logprobs.SeenLogprobs`."""
        return {}

    @abstractmethod
    async def forward(self, lease: Lease, update: UpdatePlan, column: ColumnSpec, version: int) -> None:
        """Writes log-probabilities of the update's rows as a column, computed by that weight version."""

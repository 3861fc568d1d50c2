"""The ranks behind a front, as the front sees them. Imports no torch."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import ColumnSpec
from relax_core.api.trainer import Sums
from relax_core.api.transport import Lease
from relax_core.dataflow.batching import UpdatePlan
from relax_core.roles.ranks import Ranks
from relax_core.runtimes.serve.assignment import Assignment, rank_name
from relax_core.transports.ray.calls import acall, call, find_actor


class RemoteRanks(Ranks):
    """Calls the first rank, which calls the others.

    Args:
        assignment: What the run does.
        front: Whose ranks.
    """

    def __init__(self, assignment: Assignment, front: str) -> None:
        self.size = assignment.ranks(front)
        self._timeout = assignment.config.run.serve.step_timeout
        self._leader = find_actor(rank_name(front, 0), assignment.run_id)
        self.prefers_groups = call(self._leader, "prefers_groups")

    async def accumulate(self, lease: Lease, update: UpdatePlan, number: int, first: bool) -> None:
        await acall(self._leader, "accumulate_all", lease, update, number, first, timeout=self._timeout)

    async def apply(self, number: int) -> tuple[Sums, Mapping[str, float]]:
        result: tuple[Sums, Mapping[str, float]] = await acall(self._leader, "apply_all", number, timeout=self._timeout)
        return result

    async def logprobs(self) -> Mapping[int, npt.NDArray[np.generic]]:
        logprobs: Mapping[int, npt.NDArray[np.generic]]
        logprobs = await acall(self._leader, "logprobs_of_all", timeout=self._timeout)
        return logprobs

    async def forward(self, lease: Lease, update: UpdatePlan, column: ColumnSpec, version: int) -> None:
        await acall(self._leader, "forward_all", lease, update, column, version, timeout=self._timeout)

    async def publish(self, beside: bool) -> None:
        """Publishes what was trained since the last time; returns when the trainer may go on.

        Args:
            beside: That is before all engines have the weights; the state of the run is told when they do.
        """
        await acall(self._leader, "publish", beside, timeout=self._timeout)

"""The ranks behind a front, as the front sees them. Imports no torch."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from ray.actor import ActorHandle

from relax_core.api.columns import ColumnSpec
from relax_core.api.errors import DeadlineExceeded
from relax_core.api.trainer import Sums
from relax_core.api.transport import Lease
from relax_core.dataflow.batching import UpdatePlan
from relax_core.roles.ranks import Ranks
from relax_core.runtimes.serve.assignment import Assignment, process_name, rank_name
from relax_core.runtimes.serve.proxies import StateClient
from relax_core.transports.ray.calls import ActorLost, acall, call, find_actor


@dataclass(frozen=True)
class _Call:
    """A call for an update of that number, which ranks in their next life may have to be told again."""

    number: int
    method: str
    arguments: tuple[Any, ...]


class RemoteRanks(Ranks):
    """Calls the first rank, which calls the others. When they are lost, calls wait for their next life.

    Ranks come back as they were at the beginning of the batch in training, or at its end. What they were asked of that
    batch, and have not made, is asked of them once more.

    Args:
        assignment: What the run does.
        front: Whose ranks.
        state: Knows which life the ranks are in.
    """

    def __init__(self, assignment: Assignment, front: str, state: StateClient) -> None:
        self.size = assignment.ranks(front)
        self._name = rank_name(front, 0)
        self._run_id = assignment.run_id
        self._state = state
        self._timeout = assignment.config.run.serve.step_timeout
        self._start_timeout = assignment.config.run.serve.start_timeout
        self._per_batch = assignment.plan.updates_per_batch
        self._batch: list[_Call] = []
        self._applied = 0
        self._life = 0
        self._leader: ActorHandle | None = None
        self._next_life()
        self.prefers_groups = call(self._find(), "prefers_groups")

    async def accumulate(self, lease: Lease, update: UpdatePlan, number: int, first: bool) -> None:
        before = (number - 1) // self._per_batch * self._per_batch
        again = [made for made in self._batch if before < made.number]
        self._batch = [made for made in again if not (first and made.number >= number)]
        await self._update(number, "accumulate_all", lease, update, number, first)

    async def apply(self, number: int) -> tuple[Sums, Mapping[str, float]]:
        result: tuple[Sums, Mapping[str, float]] = await self._update(number, "apply_all", number)
        self._applied = number
        return result

    async def logprobs(self) -> Mapping[int, npt.NDArray[np.generic]]:
        logprobs: Mapping[int, npt.NDArray[np.generic]] = await self._call("logprobs_of_all")
        return logprobs

    async def forward(self, lease: Lease, update: UpdatePlan, column: ColumnSpec, version: int) -> None:
        # Ranks that were lost may have written some of it.
        again = replace(lease, attempt=lease.attempt + 1)
        await self._call("forward_all", lease, update, column, version, again=(again, update, column, version))

    async def publish(self, beside: bool) -> None:
        """Publishes what was trained since the last time; returns when the trainer may go on.

        Args:
            beside: That is before all engines have the weights; the state of the run is told when they do.
        """
        await self._call("publish", beside)

    async def _update(self, number: int, method: str, *arguments: Any) -> Any:
        result = await self._call(method, *arguments)
        self._batch.append(_Call(number, method, arguments))
        return result

    async def _call(self, method: str, *arguments: Any, again: tuple[Any, ...] | None = None) -> Any:
        while True:
            if self._leader is None:
                await asyncio.to_thread(self._next_life)
            try:
                leader = self._leader or await self._repeat_batch(await asyncio.to_thread(self._find))
                return await acall(leader, method, *arguments, timeout=self._timeout)
            except ActorLost:
                self._leader = None
                arguments = arguments if again is None else again

    async def _repeat_batch(self, leader: ActorHandle) -> ActorHandle:
        """Of an update that was applied nothing is left to do, if the ranks have it; the rows of one that was not are
        handed in again in any case."""
        standing = await acall(leader, "standing", timeout=self._timeout) if self._batch else 0
        for made in self._batch:
            if made.number > min(standing, self._applied):
                await acall(leader, made.method, *made.arguments, timeout=self._timeout)
        return leader

    def _next_life(self) -> None:
        """Returns when the ranks are in a life that this object has not seen end.

        Raises:
            ActorLost: The state of the run is gone.
            DeadlineExceeded: None has begun in time.
        """
        wait = self._start_timeout
        life: int = self._state("life", self._name, self._life, wait, wait=wait)
        if life <= self._life:
            raise DeadlineExceeded(f"{self._name} was lost and did not serve again within {wait:g} s")
        self._life = life

    def _find(self) -> ActorHandle:
        """The first rank in that life; ``ActorLost`` if it has ended as well."""
        self._leader = find_actor(process_name(self._name, self._life), self._run_id)
        return self._leader

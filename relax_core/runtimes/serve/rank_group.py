"""Ranks that compute together: started together, looked at together, and, if one of them is lost, killed together."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.actor import ActorHandle

from relax_core.api.errors import DeadlineExceeded, RelaxError
from relax_core.runtimes.serve.actors import kill_actor, start_actor
from relax_core.runtimes.serve.assignment import Assignment, process_name, rank_name
from relax_core.runtimes.serve.device import accelerators_of
from relax_core.runtimes.serve.model_ranks import BESIDE
from relax_core.runtimes.serve.proxies import StateClient
from relax_core.transports.ray.calls import ActorLost, acall


@dataclass
class RankGroup:
    """Actors ``<name>-0``, ``<name>-1``, …: the first leads, and is the one that everybody else calls.

    Args:
        assignment: What the run does.
        name: Of the group.
        kinds: The classes of the ranks, one each.
    """

    assignment: Assignment
    name: str
    kinds: tuple[type, ...]
    life: int = 0
    """How often the ranks have begun to serve."""
    _serves: bool = False
    _processes: list[str] = field(default_factory=list)
    _ranks: list[ActorHandle] = field(default_factory=list)

    @property
    def leader(self) -> ActorHandle:
        """The first rank.

        Raises:
            ActorLost: The ranks are being started anew.
        """
        if not self._serves:
            raise ActorLost(f"{self.leader_name}: is being started")
        return self._ranks[0]

    @property
    def leader_name(self) -> str:
        """Under which the state knows the life of the ranks."""
        return rank_name(self.name, 0)

    async def announce(self, state: StateClient) -> None:
        """Tells the state which life the ranks are in."""
        await state.ask("alive", self.leader_name, self.life)

    async def connect(self) -> None:
        """All ranks meet a transport that has taken the place of the one before."""
        timeout = self.assignment.config.run.serve.step_timeout
        await asyncio.gather(*(acall(rank, "connect", timeout=timeout) for rank in self._ranks))

    async def start(self, loaded: Any, *lead: Any) -> None:
        """Starts the processes; returns when they serve: after ``start(loaded)`` of all, and ``lead(…, *lead)`` of the
        first.
        """
        assignment = self.assignment
        meeting = assignment.directory / f"{self.name}-ranks-{time.time_ns()}"
        names = [rank_name(self.name, rank) for rank in range(len(self.kinds))]
        self._processes = [process_name(name, self.life + 1) for name in names]
        self._ranks = [
            start_actor(
                kind,
                self._processes[rank],
                assignment.run_id,
                *(assignment, rank, meeting),
                accelerators=accelerators_of(assignment.device),
                concurrency_groups={BESIDE: 1},
            )
            for rank, kind in enumerate(self.kinds)
        ]
        timeout = assignment.config.run.serve.start_timeout
        await asyncio.gather(*(acall(rank, "start", loaded, timeout=timeout) for rank in self._ranks))
        meeting.unlink(missing_ok=True)
        await acall(self._ranks[0], "lead", self._ranks[1:], *lead, timeout=timeout)
        self.life += 1
        self._serves = True

    async def lost(self) -> RelaxError | None:
        """Why the group cannot go on: a rank is dead, or has not answered in time although it answers beside work."""
        timeout = self.assignment.config.run.serve.rank_timeout
        if not self._serves:
            return RelaxError(f"{self.name}: was not started to the end")
        pings = [acall(rank, "ping", timeout=timeout) for rank in self._ranks]
        for rank, answer in enumerate(await asyncio.gather(*pings, return_exceptions=True)):
            if isinstance(answer, (ActorLost, DeadlineExceeded)):
                return RelaxError(f"{rank_name(self.name, rank)}: {answer}")
            if isinstance(answer, BaseException):
                raise answer
        return None

    async def kill(self) -> None:
        """Kills every rank, also one that stands still; returns when their names are free."""
        ranks, self._ranks, self._serves = self._ranks, [], False
        run_id = self.assignment.run_id
        killed = (kill_actor(rank, name, run_id) for rank, name in zip(ranks, self._processes, strict=False))
        await asyncio.gather(*killed)

    def stop(self) -> None:
        """Ends the ranks with the run, whatever state they are in."""
        for rank in self._ranks:
            ray.kill(rank)

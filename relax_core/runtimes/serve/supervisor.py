"""The actors of a run: started by its controller, watched, restarted where that is possible, ended with the run."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from relax_core.api.engine import Capability
from relax_core.runtimes.serve.actors import start_actor
from relax_core.runtimes.serve.assignment import STATE, Assignment
from relax_core.runtimes.serve.deployments import start_fronts, stop_fronts
from relax_core.runtimes.serve.engines import EngineRanks
from relax_core.runtimes.serve.model_ranks import FrozenRank
from relax_core.runtimes.serve.proxies import StateClient
from relax_core.runtimes.serve.rank_group import RankGroup
from relax_core.runtimes.serve.ranks import LeadingRank, TrainerRank
from relax_core.runtimes.serve.state import StateActor
from relax_core.transports.ray.calls import acall, call
from relax_core.weights.probe import Probe

PULSE = 1.0
"""Seconds between two looks at every rank."""

STATE_THREADS = 64


@dataclass
class Supervisor:
    """Owns every actor of a run; they die with it, or with the process it is in.

    Args:
        assignment: What the run does.
    """

    assignment: Assignment
    _state: Any = None
    _engines: Any = None
    _trainer: Any = None
    _frozen: list[RankGroup] = field(default_factory=list)
    _applications: list[str] = field(default_factory=list)

    def start_state(self) -> StateClient:
        """The state of the run."""
        run_id = self.assignment.run_id
        self._state = start_actor(StateActor, STATE, run_id, self.assignment, max_concurrency=STATE_THREADS)
        state = StateClient(run_id)
        if self.assignment.generates:
            self._engines = EngineRanks(self.assignment, state)
        return state

    async def start_ranks(self, checkpoint: Path | None, version: int, probe: Probe | None) -> frozenset[Capability]:
        """Engine and ranks, at once, and what the engine can do; nothing where there is none."""
        assignment = self.assignment
        followers = assignment.ranks("actor") - 1
        self._trainer = trainer = RankGroup(assignment, "actor", (LeadingRank, *[TrainerRank] * followers))
        self._frozen = [
            RankGroup(assignment, front, (FrozenRank,) * assignment.ranks(front))
            for front in assignment.holders
            if front != trainer.name
        ]
        starting = [trainer.start(checkpoint), *(group.start(group.name) for group in self._frozen)]
        capabilities, _ = await asyncio.gather(self._start_engine(), asyncio.gather(*starting))
        await acall(trainer.leader, "lead", trainer.others, version, probe)
        for group in self._frozen:
            await acall(group.leader, "lead", group.others)
        return capabilities

    async def _start_engine(self) -> frozenset[Capability]:
        if self._engines is None:
            return frozenset()
        capabilities: frozenset[Capability] = await self._engines.start()
        return capabilities

    async def publish(self) -> None:
        """The first publication: from here on engine and trainer have the same weights under the same version."""
        timeout = self.assignment.config.run.serve.step_timeout
        await acall(self._trainer.leader, "publish", False, timeout=timeout)

    def start_fronts(self) -> None:
        """A Serve application for each front; returns when all replicas are there."""
        self._applications = start_fronts(self.assignment)

    async def watch(self) -> None:
        """Looks after the ranks until it is cancelled. An engine that is dead or hangs is replaced.

        Raises:
            RelaxError: A trainer's rank is dead or hangs, or the engine died too often.
        """
        while True:
            for group in (self._trainer, *self._frozen):
                if (lost := await group.lost()) is not None:
                    raise lost
            if self._engines is not None:
                await self._engines.look()
            await asyncio.sleep(PULSE)

    def save(self, directory: Path) -> None:
        """Model and optimizer of the trainer."""
        call(self._trainer.leader, "save", directory, timeout=self.assignment.config.run.serve.step_timeout)

    def stop(self) -> None:
        """Ends what was started, whatever state it is in."""
        stop_fronts(self._applications)
        if self._engines is not None:
            self._engines.stop()
        for group in (self._trainer, *self._frozen):
            if group is not None:
                group.stop()
        if self._state is not None:
            ray.kill(self._state)

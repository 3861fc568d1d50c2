"""The actors of a run: started by its controller, watched, restarted where that is possible, ended with the run."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.serve.api import RunTarget

from relax_core.api.engine import Capability
from relax_core.api.errors import ConfigError, DeadlineExceeded, RelaxError
from relax_core.runtimes.serve.actors import start_actor
from relax_core.runtimes.serve.assignment import STATE, Assignment, application_name, trainer_name
from relax_core.runtimes.serve.device import accelerators_of
from relax_core.runtimes.serve.engines import EngineRanks
from relax_core.runtimes.serve.front import Front
from relax_core.runtimes.serve.proxies import StateClient
from relax_core.runtimes.serve.ranks import BESIDE, LeadingRank, TrainerRank
from relax_core.runtimes.serve.roles import FRONTS
from relax_core.runtimes.serve.state import StateActor
from relax_core.transports.ray.calls import ActorLost, acall, call
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
    _ranks: list[ActorHandle] = field(default_factory=list)
    _applications: list[str] = field(default_factory=list)

    def start_state(self) -> StateClient:
        """The state of the run."""
        self._state = self._start(StateActor, STATE, self.assignment, max_concurrency=STATE_THREADS)
        state = StateClient(self.assignment.run_id)
        self._engines = EngineRanks(self.assignment, state)
        return state

    async def start_ranks(self, checkpoint: Path | None, version: int, probe: Probe | None) -> frozenset[Capability]:
        """Engine and trainer's ranks, at once, and what the engine can do."""
        self._check_accelerators()
        timeout, size = self.assignment.config.run.serve.start_timeout, self.assignment.config.run.serve.actor_ranks
        meeting = self.assignment.directory / f"ranks-{time.time_ns()}"
        for rank in range(size):
            kind = TrainerRank if rank else LeadingRank
            groups = {BESIDE: 1}
            name = trainer_name(rank)
            self._ranks.append(self._start(kind, name, self.assignment, rank, meeting, concurrency_groups=groups))
        starting = [acall(rank, "start", checkpoint, timeout=timeout) for rank in self._ranks]
        capabilities, *_ = await asyncio.gather(self._engines.start(), *starting)
        meeting.unlink(missing_ok=True)
        leader, *others = self._ranks
        await acall(leader, "lead", others, version, probe)
        return capabilities

    async def publish(self) -> tuple[int, float]:
        """The first publication: from here on engine and trainer have the same weights under the same version."""
        published: tuple[int, float]
        published = await acall(self._ranks[0], "publish", timeout=self.assignment.config.run.serve.step_timeout)
        return published

    def start_fronts(self) -> None:
        """A Serve application for each front; returns when all replicas are there."""
        run_id = self.assignment.run_id
        deployment: Any = serve.deployment(Front)
        deployment = deployment.options(
            num_replicas=1,
            ray_actor_options={"num_cpus": 0.1},
            health_check_period_s=1.0,
            health_check_timeout_s=30.0,
            graceful_shutdown_timeout_s=1.0,
            graceful_shutdown_wait_loop_s=0.1,
        )
        self._applications = [application_name(run_id, front) for front in FRONTS]
        targets = [
            RunTarget(deployment.bind(run_id, front), name=application_name(run_id, front), route_prefix=None)
            for front in FRONTS
        ]
        serve.run_many(targets)

    async def watch(self) -> None:
        """Looks after the ranks until it is cancelled. An engine that is dead or hangs is replaced.

        Raises:
            RelaxError: A trainer's rank is dead or hangs, or the engine died too often.
        """
        timeout = self.assignment.config.run.serve.rank_timeout
        while True:
            for rank, actor in enumerate(self._ranks):
                try:
                    await acall(actor, "ping", timeout=timeout)
                except (ActorLost, DeadlineExceeded) as error:
                    raise RelaxError(f"{trainer_name(rank)} of the trainer cannot go on: {error}") from error
            await self._engines.look()
            await asyncio.sleep(PULSE)

    def save(self, directory: Path) -> None:
        """Model and optimizer of the trainer."""
        call(self._ranks[0], "save", directory, timeout=self.assignment.config.run.serve.step_timeout)

    def stop(self) -> None:
        """Ends what was started, whatever state it is in."""
        for application in self._applications:
            with suppress(RayError, RuntimeError, TimeoutError):
                serve.delete(application, _blocking=False)
        if self._engines is not None:
            self._engines.stop()
        for actor in [*self._ranks, self._state]:
            if actor is not None:
                ray.kill(actor)

    def _start(self, kind: type, name: str, *arguments: Any, **options: Any) -> ActorHandle:
        accelerators = 0 if name == STATE else accelerators_of(self.assignment.device)
        return start_actor(kind, name, self.assignment.run_id, *arguments, accelerators=accelerators, **options)

    def _check_accelerators(self) -> None:
        needed = accelerators_of(self.assignment.device) * (self.assignment.config.run.serve.actor_ranks + 1)
        there = int(ray.cluster_resources().get("GPU", 0))
        if needed > there:
            raise ConfigError(
                f"serve.actor_ranks: with the engine {needed} accelerators are needed, and the cluster has {there}"
            )

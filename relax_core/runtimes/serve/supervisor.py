"""The processes of a run: started by its controller, watched, brought back when they are lost, ended with the run."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import ray

from relax_core.api.engine import Capability
from relax_core.api.errors import DeadlineExceeded, RelaxError, TransportError
from relax_core.api.transport import Transport
from relax_core.runtimes.serve.actors import kill_actor, start_actor
from relax_core.runtimes.serve.assignment import STATE, Assignment
from relax_core.runtimes.serve.deployments import start_fronts, stop_fronts
from relax_core.runtimes.serve.engines import EngineRanks
from relax_core.runtimes.serve.model_ranks import FrozenRank
from relax_core.runtimes.serve.proxies import StateClient
from relax_core.runtimes.serve.rank_group import RankGroup
from relax_core.runtimes.serve.recovery import Boundary, StageLost, TrainerPoint, TrainerPoints
from relax_core.runtimes.serve.restarts import Restarts
from relax_core.runtimes.serve.state_actor import StateActor
from relax_core.runtimes.serve.trainer_ranks import ACTOR, TrainerRanks
from relax_core.transports.ray.calls import ActorLost, acall, call
from relax_core.weights.probe import Probe

PULSE = 1.0
"""Seconds between two looks at a process."""

STATE_THREADS = 64
TRANSPORT = "transport"

Result = TypeVar("Result")


class Supervisor:
    """Owns every process of a run; they end with it, or with the process it is in.

    Args:
        assignment: What the run does.
        points: Where the trainer's ranks can be started.
        restarts: What is lost is counted there.
        count: Adds to a counter of the run.
    """

    def __init__(
        self, assignment: Assignment, points: TrainerPoints, restarts: Restarts, count: Callable[[str, int], None]
    ) -> None:
        self.assignment = assignment
        self._points = points
        self._restarts = restarts
        self._count = count
        self._rank_timeout = assignment.config.run.serve.rank_timeout
        self._state_actor: Any = None
        self._engines: EngineRanks | None = None
        self._trainer: TrainerRanks | None = None
        self._frozen: list[RankGroup] = []
        self._applications: list[str] = []
        self.state: StateClient
        self.transport: Transport

    def start_state(self, boundary: Boundary | None = None) -> StateClient:
        """The state of the run and its transport, without a row; from the beginning, or back at a boundary."""
        run_id = self.assignment.run_id
        self._state_actor = start_actor(StateActor, STATE, run_id, self.assignment, max_concurrency=STATE_THREADS)
        self.transport = self.assignment.transport(self._count)
        self.state = StateClient(run_id)
        if boundary is not None:
            self.state("rewind", boundary.stage)
        self.transport.open(self.assignment.plan.columns, self.assignment.plan.consumers)
        return self.state

    async def start_ranks(self, point: TrainerPoint, version: int, probe: Probe | None) -> frozenset[Capability]:
        """Engines and ranks, at once, and what the engines can do; nothing where there are none."""
        assignment = self.assignment
        self._trainer = TrainerRanks(assignment, self._points, probe)
        self._frozen = [
            RankGroup(assignment, front, (FrozenRank,) * assignment.ranks(front))
            for front in assignment.holders
            if front != ACTOR
        ]
        starting = [self._trainer.start(point, version), *(group.start(group.name) for group in self._frozen)]
        capabilities, _ = await asyncio.gather(self._start_engines(), asyncio.gather(*starting))
        await self._announce()
        return capabilities

    async def _start_engines(self) -> frozenset[Capability]:
        if not self.assignment.generates:
            return frozenset()
        self._engines = EngineRanks(self.assignment, self.state, self._restarts)
        return await self._engines.start()

    async def _announce(self) -> None:
        for group in self._groups:
            await group.announce(self.state)
        if self._engines is not None:
            await self._engines.announce()

    @property
    def _groups(self) -> list[RankGroup]:
        trainer = [] if self._trainer is None else [self._trainer.group]
        return [*trainer, *self._frozen]

    async def publish(self) -> None:
        """Returns when engines have the trainer's weights, under a version of their own."""
        assert self._trainer is not None
        await self._trainer.publish()

    def start_fronts(self) -> None:
        """A Serve application for each front; returns when all replicas are there."""
        self._applications = start_fronts(self.assignment)

    async def watch(self) -> None:
        """Looks after everything that Serve does not, until it is cancelled.

        Ranks and engines that are dead or hang are started anew, beside whatever goes on.

        Raises:
            StageLost: Something is lost that only going back brings back.
            RelaxError: Too much was lost, or something could not be started.
        """
        looks = [self._look_at_state, self._look_at_transport, self._look_at_trainer]
        frozen = [lambda group=group: self._look_at_frozen(group) for group in self._frozen]
        engines = [] if self._engines is None else [self._engines.look]
        await together(*(_again(look) for look in (*looks, *frozen, *engines)))

    async def with_engines(self, work: Coroutine[Any, Any, Result]) -> Result:
        """What the work returns, which needs engines: they alone are looked after meanwhile.

        Raises:
            RelaxError: What the work raised, or an engine was lost too often.
        """
        task = asyncio.ensure_future(work)
        looks = [] if self._engines is None else [_again(self._engines.look)]
        await together(task, *looks)
        return task.result()

    def lost(self, name: str, cause: object) -> StageLost:
        """The loss of something that only going back brings back, counted.

        Raises:
            RelaxError: It was lost too often, or too much was.
        """
        self._restarts.spend(name, str(cause))
        return StageLost(name, cause)

    async def explain(self) -> None:
        """Raises :class:`StageLost` if something is lost now that a failure may have come of."""
        await self._look_at_state()
        await self._look_at_transport()
        for group in self._groups:
            if (cause := await group.lost()) is not None:
                raise self.lost(group.name, cause)

    async def stop_fronts(self) -> None:
        """Ends all fronts; returns when none of their processes is left."""
        await asyncio.to_thread(stop_fronts, self._applications, True)

    async def standing(self) -> int | None:
        """The update that the trainer is at, if all its ranks are; see :meth:`TrainerRanks.standing`."""
        assert self._trainer is not None
        return await self._trainer.standing()

    async def go_back(self, boundary: Boundary, standing: int | None, version: int) -> StateClient:
        """Ends what belongs to the time after a boundary, and starts it as it was then, fronts apart.

        Args:
            boundary: Where to go back to.
            standing: The update that the trainer is at.
            version: At least the one that was published last.
        """
        assert self._trainer is not None
        await kill_actor(self._state_actor, STATE, self.assignment.run_id)
        await asyncio.to_thread(self.transport.close)
        await asyncio.to_thread(self.start_state, boundary)
        if self._engines is not None:
            await self._engines.announce()
            await self._engines.abort()
        for group in self._frozen:
            if await group.lost() is None:
                await group.connect()
            else:
                await group.kill()
                await group.start(group.name)
        await self._trainer_back(boundary.update, standing, version)
        await self._announce()
        return self.state

    async def _trainer_back(self, update: int, standing: int | None, version: int) -> None:
        assert self._trainer is not None
        stays = standing == update
        if not stays:
            await self._trainer.group.kill()
        await asyncio.to_thread(self._points.forget_beyond, update)
        if stays:
            await self._trainer.group.connect()
            return
        point = self._points.at(update)
        assert point is not None, "the boundary was chosen so"
        await self._trainer.start(point, version)

    def save(self, directory: Path) -> None:
        """Model and optimizer of the trainer; by its ranks in their next life, if they are lost meanwhile."""
        assert self._trainer is not None
        serve, group = self.assignment.config.run.serve, self._trainer.group
        while True:
            life = group.life
            try:
                call(group.leader, "save", directory, timeout=serve.step_timeout)
                return
            except ActorLost as error:
                if self.state("life", group.leader_name, life, serve.start_timeout, wait=serve.start_timeout) <= life:
                    raise RelaxError(f"the policy could not be saved: {error}") from error

    def stop(self) -> None:
        """Ends what was started, whatever state it is in."""
        stop_fronts(self._applications)
        if self._engines is not None:
            self._engines.stop()
        for group in self._groups:
            group.stop()
        if self._state_actor is not None:
            ray.kill(self._state_actor)
            with suppress(RelaxError):
                self.transport.close()

    async def _look_at_state(self) -> None:
        try:
            await acall(self._state_actor, "version", timeout=self._rank_timeout)
        except (ActorLost, DeadlineExceeded) as error:
            raise self.lost(STATE, error) from error

    async def _look_at_transport(self) -> None:
        try:
            await asyncio.wait_for(asyncio.to_thread(self.transport.depth), self._rank_timeout)
        except TimeoutError as error:
            raise self.lost(TRANSPORT, f"no answer within {self._rank_timeout:g} s") from error
        except (TransportError, DeadlineExceeded) as error:
            raise self.lost(TRANSPORT, error) from error

    async def _look_at_trainer(self) -> None:
        assert self._trainer is not None
        trainer = self._trainer
        await self._look_at(trainer.group, lambda cause: trainer.restart(self.state, cause))

    async def _look_at_frozen(self, group: RankGroup) -> None:
        async def restart(cause: RelaxError) -> None:
            await group.kill()
            await group.start(group.name)

        await self._look_at(group, restart)

    async def _look_at(self, group: RankGroup, restart: Callable[[RelaxError], Awaitable[None]]) -> None:
        cause = await group.lost()
        if cause is None:
            return
        began = time.monotonic()
        self._restarts.spend(group.name, str(cause))
        await restart(cause)
        await group.announce(self.state)
        self._restarts.done(group.name, str(cause), time.monotonic() - began)


async def _again(look: Callable[[], Awaitable[None]]) -> None:
    while True:
        await look()
        await asyncio.sleep(PULSE)


async def together(*works: Awaitable[object]) -> None:
    """Works at the same time; the first that returns or raises ends all."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

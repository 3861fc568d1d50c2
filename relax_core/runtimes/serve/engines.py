"""The lives of the engines' ranks: started, asked whether they go on, replaced one by one when they do not."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray

from relax_core.api.engine import Capability
from relax_core.api.errors import DeadlineExceeded, RelaxError
from relax_core.runtimes.serve.actors import CLOSE_SECONDS, kill_actor, start_actor
from relax_core.runtimes.serve.assignment import Assignment, process_name
from relax_core.runtimes.serve.device import accelerators_of
from relax_core.runtimes.serve.engine import EngineRank
from relax_core.runtimes.serve.proxies import StateClient
from relax_core.runtimes.serve.restarts import Restarts
from relax_core.transports.ray.calls import ActorLost, acall, call

CALLS = 2**14
"""Calls that a rank answers at a time: each group of a batch is one, and a look must still get through."""


class EngineRanks:
    """Owns the engines' actors, ``engine-0``, ``engine-1``, ….

    Args:
        assignment: What the run does.
        state: Is told who lives.
        restarts: What is lost is counted there.
    """

    def __init__(self, assignment: Assignment, state: StateClient, restarts: Restarts) -> None:
        self._ranks = [Rank(assignment, state, restarts, name) for name in assignment.engines]

    async def start(self) -> frozenset[Capability]:
        """Starts all ranks; returns when they serve, with what they can do."""
        capabilities, *_ = await asyncio.gather(*(rank.start() for rank in self._ranks))
        return capabilities

    async def look(self) -> None:
        """Asks all whether they go on. One that is dead, hangs or is not healthy is replaced beside the others.

        Raises:
            TooManyLosses: One died too often, or too much did.
        """
        await asyncio.gather(*(rank.look() for rank in self._ranks))

    async def announce(self) -> None:
        """Tells a state that has taken the place of another which lives the ranks are in."""
        for rank in self._ranks:
            await rank.announce()

    async def abort(self) -> None:
        """Ends all requests: whoever made them is gone."""
        for rank in self._ranks:
            await rank.abort()

    def stop(self) -> None:
        """Ends all ranks, whatever state they are in."""
        for rank in self._ranks:
            rank.stop()


@dataclass
class Rank:
    """One engine's actor, in one of its lives.

    Args:
        assignment: What the run does.
        state: Is told when it lives.
        restarts: Its deaths are counted there.
        name: Of the engine.
    """

    assignment: Assignment
    state: StateClient
    restarts: Restarts
    name: str
    _life: int = 1
    _actor: Any = None
    _process: str = ""
    _serves: bool = False
    _is_announced: bool = False
    _replacement: asyncio.Task[None] | None = None

    async def start(self) -> frozenset[Capability]:
        """Starts the actor; returns when it serves, with what it can do."""
        run_id, accelerators = self.assignment.run_id, accelerators_of(self.assignment.device)
        options: dict[str, Any] = {"accelerators": accelerators, "max_concurrency": CALLS}
        self._process = process_name(self.name, self._life)
        self._actor = start_actor(EngineRank, self._process, run_id, self.assignment, self.name, **options)
        timeout = self.assignment.config.run.serve.start_timeout
        capabilities: frozenset[Capability] = await acall(self._actor, "start", timeout=timeout)
        self._serves = True
        await self.announce()
        return capabilities

    async def announce(self) -> None:
        """Tells the state which life the rank is in, if it serves. One that does not hear it is told again at the next
        look, or another that takes its place."""
        if self._serves:
            self._is_announced = False
            with suppress(ActorLost, DeadlineExceeded):
                await self.state.ask("alive", self.name, self._life)
                self._is_announced = True

    async def abort(self) -> None:
        """Ends all requests that it has; a rank that is dead has none."""
        if self._serves:
            with suppress(ActorLost, DeadlineExceeded):
                await acall(self._actor, "abort", timeout=self.assignment.config.run.serve.rank_timeout)

    async def look(self) -> None:
        """Asks whether it goes on, and begins to replace it if not. What a replacement raised is raised here."""
        if self._replacement is not None:
            if self._replacement.done():
                self._replacement.result()
                self._replacement = None
            return
        cause = await self._trouble()
        if cause:
            self._replacement = asyncio.create_task(self._replace(cause))
        elif not self._is_announced:
            await self.announce()

    def stop(self) -> None:
        """Ends the actor."""
        if self._replacement is not None:
            self._replacement.cancel()
        if self._actor is None:
            return
        with suppress(RelaxError):
            call(self._actor, "close", timeout=CLOSE_SECONDS)
        ray.kill(self._actor)

    async def _trouble(self) -> str:
        """Why it must be replaced, or nothing."""
        timeout = self.assignment.config.run.serve.rank_timeout
        try:
            trouble: str = await acall(self._actor, "trouble", timeout=timeout)
        except RelaxError as error:
            return str(error)
        return trouble

    async def _replace(self, cause: str) -> None:
        """Starts it anew, again if it dies or fails while it starts.

        Raises:
            TooManyLosses: It died too often, or too much did.
        """
        while cause:
            self.restarts.spend(self.name, cause)
            self._life += 1
            self._serves = False
            began, why = time.monotonic(), cause
            await kill_actor(self._actor, self._process, self.assignment.run_id)
            cause = ""
            try:
                await self.start()
            except RelaxError as error:
                cause = str(error)
            self.restarts.done(self.name, why, time.monotonic() - began)

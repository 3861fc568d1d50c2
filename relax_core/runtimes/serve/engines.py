"""The life of the engine's rank: started, asked whether it goes on, replaced when it does not."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray

from relax_core.api.engine import Capability
from relax_core.api.errors import DeadlineExceeded, RelaxError
from relax_core.runtimes.serve.actors import CLOSE_SECONDS, kill_actor, start_actor
from relax_core.runtimes.serve.assignment import ENGINE, Assignment
from relax_core.runtimes.serve.device import accelerators_of
from relax_core.runtimes.serve.engine import EngineRank
from relax_core.runtimes.serve.proxies import StateClient
from relax_core.transports.ray.calls import ActorLost, acall, call


@dataclass
class EngineRanks:
    """Owns the engine's actor.

    Args:
        assignment: What the run does.
        state: Is told who lives, and who was started again.
    """

    assignment: Assignment
    state: StateClient
    deaths: int = 0
    _actor: Any = None

    async def start(self) -> frozenset[Capability]:
        """Starts the rank; returns when it serves, with what it can do."""
        assignment = self.assignment
        accelerators = accelerators_of(assignment.device)
        self._actor = start_actor(EngineRank, ENGINE, assignment.run_id, assignment, accelerators=accelerators)
        timeout = assignment.config.run.serve.start_timeout
        capabilities: frozenset[Capability] = await acall(self._actor, "start", timeout=timeout)
        await acall(self.state.actor, "alive", ENGINE, self.deaths + 1)
        return capabilities

    async def look(self) -> None:
        """Asks whether it goes on; an engine that is dead or hangs is replaced.

        Raises:
            RelaxError: It died too often.
        """
        try:
            await acall(self._actor, "health", timeout=self.assignment.config.run.serve.rank_timeout)
        except (ActorLost, DeadlineExceeded) as error:
            await self._replace(error)

    def stop(self) -> None:
        """Ends the rank, whatever state it is in."""
        if self._actor is None:
            return
        with suppress(RelaxError):
            call(self._actor, "close", timeout=CLOSE_SECONDS)
        ray.kill(self._actor)

    async def _replace(self, cause: RelaxError) -> None:
        self.deaths += 1
        allowed = self.assignment.config.run.serve.restarts
        if self.deaths > allowed:
            raise RelaxError(f"{ENGINE} died {self.deaths} times, serve.restarts is {allowed}; the last time: {cause}")
        await acall(self.state.actor, "restarted", ENGINE, str(cause))
        await kill_actor(self._actor, ENGINE, self.assignment.run_id)
        await self.start()

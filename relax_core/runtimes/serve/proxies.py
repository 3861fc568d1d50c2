"""The collaborators of a role that lives in a front: the state of the run, from afar."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from relax_core.api.rows import Task
from relax_core.roles.source import IssuedTask
from relax_core.runtimes.serve.assignment import STATE
from relax_core.transports.ray.calls import CALL_SECONDS, ActorLost, acall, afind_actor, call, find_actor

HELD_SECONDS = 10.0
"""Time that one call waits for the run to go on, while an evaluation or a checkpoint holds it."""

PAUSE_SECONDS = 0.5
"""Between two looks for a state that is gone."""


class StateClient:
    """Calls to the state of a run, from any thread; to the one that takes its place, once there is one.

    Args:
        run_id: Name of the run.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.actor = find_actor(STATE, run_id)

    def __call__(self, method: str, *arguments: Any, wait: float = 0.0) -> Any:
        """The result of a method of :class:`relax_core.runtimes.serve.state_actor.StateActor`."""
        try:
            return call(self.actor, method, *arguments, timeout=wait + CALL_SECONDS)
        except ActorLost:
            self.actor = find_actor(STATE, self._run_id)
            return call(self.actor, method, *arguments, timeout=wait + CALL_SECONDS)

    async def ask(self, method: str, *arguments: Any, wait: float = 0.0) -> Any:
        """The same, without holding up the event loop."""
        try:
            return await acall(self.actor, method, *arguments, timeout=wait + CALL_SECONDS)
        except ActorLost:
            self.actor = await afind_actor(STATE, self._run_id)
            return await acall(self.actor, method, *arguments, timeout=wait + CALL_SECONDS)

    def count(self, name: str, amount: int = 1) -> None:
        """Adds to a counter of the run."""
        self("count", name, amount)


async def find_state(run_id: str, patience: float) -> StateClient:
    """The state of a run, also when it is gone and about to be brought back.

    Raises:
        ActorLost: There is none within ``patience`` seconds.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            return await asyncio.to_thread(StateClient, run_id)
        except ActorLost:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(PAUSE_SECONDS)


class RemoteSource:
    """See :class:`relax_core.roles.source.Source`.

    Args:
        state: The state of the run.
    """

    def __init__(self, state: StateClient) -> None:
        self._state = state
        self.exhausted = False

    @property
    def complete(self) -> bool:
        complete: bool = self._state("complete")
        return complete

    def admitted(self, patience: float = 0.0) -> list[IssuedTask]:
        tasks: list[IssuedTask]
        tasks, self.exhausted = self._state("admitted", patience, wait=patience)
        return tasks

    def unfinished(self) -> list[IssuedTask]:
        tasks: list[IssuedTask] = self._state("unfinished")
        return tasks

    def upcoming(self, most: int) -> list[Task]:
        tasks: list[Task] = self._state("upcoming", most)
        return tasks

    def finished(self, group: int) -> None:
        self._state("finished", group)


class RemoteLedger:
    """See :class:`relax_core.dataflow.ledger.Ledger`."""

    def __init__(self, state: StateClient) -> None:
        self._state = state

    def generated(self, group: int, rows: int, tokens: int, versions: Sequence[int]) -> None:
        self._state("generated", group, rows, tokens, versions)

    def dropped(self, group: int, reason: str, rewards: Mapping[str, int] | None = None) -> None:
        self._state("dropped", group, reason, rewards)

    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = self._state("counts")
        return counts


class RemoteReporter:
    """See :class:`relax_core.metrics.hub.MetricHub`."""

    def __init__(self, state: StateClient) -> None:
        self._state = state

    def write(self, stream: str, step: int, metrics: Mapping[str, float]) -> None:
        self._state("tell", "write", stream, step, metrics)

    def text(self, stream: str, step: int, name: str, value: str) -> None:
        self._state("tell", "text", stream, step, name, value)

    def count(self, name: str, amount: int = 1) -> None:
        self._state.count(name, amount)


class RemoteBatches:
    """See :class:`relax_core.roles.batches.BatchLog`."""

    def __init__(self, state: StateClient) -> None:
        self._state = state

    @property
    def begun(self) -> tuple[int, ...]:
        groups: tuple[int, ...] = self._state("batches")[0]
        return groups

    @property
    def finished(self) -> tuple[int, ...]:
        groups: tuple[int, ...] = self._state("batches")[1]
        return groups

    @property
    def counters(self) -> Mapping[str, int | float]:
        """The actor's, at whichever came last of begin and finish."""
        counters: Mapping[str, int | float] = self._state("batches")[2]
        return counters

    def begin(self, groups: Sequence[int], counters: Mapping[str, int | float]) -> None:
        while not self._state("begin", groups, counters, HELD_SECONDS, wait=HELD_SECONDS):
            pass  # an evaluation or a checkpoint goes on, with deadlines of its own; or the run ends, and this process

    def finish(self, counters: Mapping[str, int | float]) -> None:
        self._state("finish", counters)

    def dropped(self, group: int, reason: str) -> None:
        self._state("dropped", group, reason)

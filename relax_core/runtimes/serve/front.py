"""A front: the Serve replica in which a role's loop runs. It holds no model; killed, it is replaced and goes on."""

import asyncio
import os
import threading
import time
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

from ray import serve
from ray.exceptions import RayError

from relax_core.api.errors import DeadlineExceeded, RelaxError, TransportLost
from relax_core.metrics.generated import Generated
from relax_core.roles.role import Progress, Role
from relax_core.runtimes.serve.assignment import STATE, Assignment, application_name
from relax_core.runtimes.serve.process import prepare_process
from relax_core.runtimes.serve.proxies import StateClient
from relax_core.runtimes.serve.roles import PATIENCE, Surroundings, build_roles
from relax_core.transports.ray.calls import ActorLost, acall, find_actor

LOSSES = (ActorLost, TransportLost, DeadlineExceeded)
"""What a call raises to somebody who is gone or silent."""

WAIT_SECONDS = 20.0
TELL_SECONDS = 5.0
LOOK_SECONDS = 2.0
GONE_SECONDS = 10.0
"""A run without a state for so long has no controller, which would have ended the fronts, to bring the state back."""


@runtime_checkable
class Measured(Protocol):
    """A role that generates."""

    generated: Generated
    generating: bool


class ProgressStamp:
    """What a loop does now, and by when it said it would be done. Written by one thread, read by another."""

    def __init__(self) -> None:
        self._operation, self._deadline, self._steps = "starting", float("inf"), 0

    def begin(self, operation: str, seconds: float, since: float | None = None) -> None:
        """The loop begins something that takes at most so long, or goes on with what it began before (monotonic)."""
        began = time.monotonic() if since is None else since
        self._operation, self._deadline, self._steps = operation, began + seconds, self._steps + 1

    def end(self, operation: str) -> None:
        """The loop has ended, well or not."""
        self._operation, self._deadline = operation, float("inf")

    def late(self) -> str | None:
        """What hangs, if the deadline has passed."""
        over = time.monotonic() - self._deadline
        return f"{self._operation} is {over:.0f} s beyond its deadline" if over > 0 else None

    def describe(self) -> dict[str, Any]:
        """For people."""
        return {"operation": self._operation, "steps": self._steps, "late": self.late()}


class Front:
    """Runs the loop of its roles in a thread of its own; Serve's event loop only answers whether it goes on.

    Args:
        run_id: Name of the run; everything else is written down in its state.
        front: Which one; see :func:`relax_core.dataflow.placement.fronts`.
    """

    def __init__(self, run_id: str, front: str) -> None:
        self._run_id = run_id
        self._front = front
        self._stamp = ProgressStamp()
        threading.Thread(target=self._run, name=front, daemon=True).start()
        threading.Thread(target=self._leave_with_run, name="leave", daemon=True).start()

    async def check_health(self) -> None:
        """Ends this process when the loop hangs, and Serve starts another one. Would only the check fail, the old one
        could go on beside the new one for a while."""
        late = self._stamp.late()
        if late is not None:
            with suppress(RelaxError, TimeoutError):
                await asyncio.wait_for(asyncio.to_thread(self._tell_why, late), TELL_SECONDS)
            os._exit(1)

    def _tell_why(self, late: str) -> None:
        StateClient(self._run_id)("gave_up", self._front, late)

    async def status(self) -> dict[str, Any]:
        """What the loop does, for people."""
        return {"front": self._front, "pid": os.getpid(), **self._stamp.describe()}

    def _run(self) -> None:
        """The thread: whatever ends the loop is told to the controller, which ends the run."""
        try:
            state = StateClient(self._run_id)
            try:
                asyncio.run(self._loop(state))
            except LOSSES:
                raise
            except RelaxError as error:
                self._fail(state, error)
            except Exception as error:
                self._fail(state, RelaxError(f"{self._front}: {type(error).__name__}: {error}"))
        except LOSSES as error:
            # Somebody whom the loop needs is gone or silent, which is no fault of its own. The controller brings that
            # back, and ends this front where the stage goes back; otherwise the loop begins anew in another process.
            self._stamp.begin(f"waiting for the controller ({error})", WAIT_SECONDS)

    def _leave_with_run(self) -> None:
        """The thread that takes this front's application away when the controller cannot: the state dies with it. The
        loop may not see that: it may hear of a rank's end first, and tell a state that is still there."""
        seen = time.monotonic()
        while True:
            time.sleep(LOOK_SECONDS)
            try:
                find_actor(STATE, self._run_id)
                seen = time.monotonic()
            except DeadlineExceeded:
                seen = time.monotonic()  # the cluster is silent, and says nothing of the run
            except ActorLost:
                if time.monotonic() - seen > GONE_SECONDS:
                    with suppress(RayError, RuntimeError, TimeoutError):  # Serve may be about to start anew
                        serve.delete(application_name(self._run_id, self._front), _blocking=False)

    def _fail(self, state: StateClient, error: RelaxError) -> None:
        self._stamp.end(f"failed: {error}")
        state("failed", error)

    async def _loop(self, state: StateClient) -> None:
        life: int = state("started", self._front)
        assignment: Assignment = state("assignment")
        prepare_process(assignment, self._front)
        transport = assignment.transport(state.count)
        if assignment.config.run.serve.front(self._front).replicas == 1:
            # Whoever held leases of these roles before was this front, and is dead.
            for consumer in assignment.plan.consumers:
                if consumer.name in assignment.fronts[self._front]:
                    transport.reclaim(consumer.name)
        roles, turn = await build_roles(self._front, Surroundings(assignment, state, transport))
        seconds = assignment.config.run.serve.step_timeout
        ended: set[str] = set()
        busy: dict[str, float] = {}
        moves = 0
        while len(ended) < len(roles):
            self._stamp.begin("a turn", seconds)
            if not await turn.begun():
                continue
            for role in roles:
                self._stamp.begin(f"a step of {role.name}", seconds, busy.get(role.name))
                progress = await role.step()
                if progress is Progress.BUSY:
                    busy.setdefault(role.name, time.monotonic())
                    moves = await _settled_or_moved(role, state, moves)
                else:
                    busy.pop(role.name, None)
                if progress is Progress.IDLE and isinstance(role, Measured):
                    # Its engines are looked at meanwhile, on the same event loop, which a patient step would hold.
                    moves = await state.ask("moved", moves, PATIENCE, wait=PATIENCE)
                if progress is Progress.DONE:
                    ended.add(role.name)
                if progress is Progress.WORKED and isinstance(role, Measured):
                    state("rolled_out", life, role.generated, role.generating)
        await turn.end()
        self._stamp.end("the stream has ended")
        state("ended", self._front)


async def _settled_or_moved(role: Role, state: StateClient, seen: int) -> int:
    """Waits until something has ended that the role left running, or something has moved elsewhere that it may be
    waiting for; how often that was."""
    settled = asyncio.create_task(role.settled())
    moved = asyncio.create_task(acall(state.actor, "moved", seen, PATIENCE))
    await asyncio.wait((settled, moved), return_when=asyncio.FIRST_COMPLETED)
    for task in (settled, moved):
        task.cancel()
    await asyncio.gather(settled, moved, return_exceptions=True)
    moves: int = seen if moved.cancelled() else moved.result()
    return moves

"""Loops: roles that work at the same time, each as soon as something is ready for it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from relax_core.roles.role import Progress, Role
from relax_core.runtimes.watch import Watch


class Changes:
    """Counts whatever a role did that another may be waiting for."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Event()

    def tell(self) -> None:
        """Something changed."""
        self.count += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def since(self, seen: int) -> None:
        """Returns when something has changed after the count was ``seen``."""
        if self.count == seen:
            await self._changed.wait()


class Loops:
    """One loop per lane. The roles of a lane hold one device in turn, and the last of them ends it.

    Args:
        lanes: Roles, in the order data flows; the last lane trains.
        finished: Whether enough has been trained.
        after_batch: Called when the last lane has moved, before it goes on: for evaluation and checkpoints.
        watch: Ends the run when only drops happen, or nothing.
    """

    def __init__(
        self,
        lanes: Sequence[Sequence[Role]],
        finished: Callable[[], bool],
        after_batch: Callable[[], Awaitable[None]],
        watch: Watch,
    ) -> None:
        self._lanes = lanes
        self._finished = finished
        self._after_batch = after_batch
        self._watch = watch
        self._changes = Changes()
        self._waiting: dict[int, tuple[int, Progress]] = {}
        """By lane that has nothing to do: the count of changes it has seen, and why."""

    def tell(self) -> None:
        """Something changed that no lane did."""
        self._changes.tell()

    async def run(self) -> None:
        """Runs until the last lane has ended; then, or when one fails, the others are given up.

        Raises:
            TrainingError: Everything is dropped, or no role can move.
            RelaxError: What a role raises.
        """
        tasks = [asyncio.create_task(self._loop(number)) for number in range(len(self._lanes))]
        try:
            left = set(tasks)
            while not tasks[-1].done():
                ended, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not self._finished():
            self._watch.check_end()

    async def _loop(self, lane: int) -> None:
        last = lane == len(self._lanes) - 1
        while not self._finished():
            seen = self._changes.count
            self._waiting.pop(lane, None)
            states = [await role.step() for role in self._lanes[lane]]
            progress = _of_all(states)
            if progress is Progress.WORKED:
                self._changes.tell()
                self._watch.check_drops()
                if last:
                    await self._after_batch()
                await asyncio.sleep(0)  # a step may have waited for nothing, and others must come to their turn
            elif progress is Progress.DONE:
                self._waiting[lane] = (self._changes.count, progress)
                self._changes.tell()
                return
            else:
                self._waiting[lane] = (seen, progress)
                self._check_moving()
                roles = zip(self._lanes[lane], states, strict=True)
                await self._wait(seen, [role for role, state in roles if state is Progress.BUSY])

    async def _wait(self, seen: int, busy: Sequence[Role]) -> None:
        """Until another lane has moved, or something has ended that a role of this one left running."""
        waits = [asyncio.create_task(self._changes.since(seen))]
        waits += [asyncio.create_task(role.settled()) for role in busy]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _check_moving(self) -> None:
        """If every lane waits for another one to move, none ever will."""
        if len(self._waiting) < len(self._lanes):
            return
        for seen, progress in self._waiting.values():
            if progress is Progress.BUSY or (progress is Progress.IDLE and seen != self._changes.count):
                return
        self._watch.stand_still({self._lanes[lane][-1].name: progress for lane, (_, progress) in self._waiting.items()})


def _of_all(states: Sequence[Progress]) -> Progress:
    """The progress of a lane: that of its busiest role, and else of the last."""
    return next((state for state in (Progress.WORKED, Progress.BUSY) if state in states), states[-1])

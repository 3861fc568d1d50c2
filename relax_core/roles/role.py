"""What a runtime knows of a role."""

import asyncio
from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, Generic, TypeVar

from relax_core.metrics.timeline import NO_TIMELINE, Timeline

Work = TypeVar("Work")


class Progress(Enum):
    """What one step achieved."""

    WORKED = "worked"
    """Something was done; there may be more."""
    BUSY = "busy"
    """Work that a step began is still going on; :meth:`Role.settled` waits for some of it to end."""
    IDLE = "idle"
    """Nothing is ready yet."""
    DONE = "done"
    """The stream has ended; there will never be more."""


class Role(ABC):
    """A loop body: takes what is ready, does its work, writes its columns."""

    name: str

    patience: float = 0.0
    """Seconds a step may wait for something to become ready; none where roles share a process."""

    shared: bool = False
    """Whether other processes do this role's work too. What one of them holds is then not another's to take back: a
    lease ends when its holder no longer renews it."""

    timeline: Timeline = NO_TIMELINE
    """Told when the role did what."""

    @abstractmethod
    async def step(self) -> Progress:
        """Handles what is ready now."""

    async def settled(self) -> None:
        """Returns when something has ended that a step began and left running; at once where no step does so."""

    async def close(self) -> None:
        """Gives up what still runs; there will be no further step."""


class BackgroundRole(Role, Generic[Work]):
    """A role whose steps begin work and take back what has ended, and wait for none of it."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[Any], Work] = {}
        """What goes on, and what it is the work on."""

    async def settled(self) -> None:
        """Returns when some of the work has ended."""
        if self._running:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Gives up the work that goes on."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

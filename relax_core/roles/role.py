"""What a runtime knows of a role."""

from abc import ABC, abstractmethod
from enum import Enum

from relax_core.metrics.timeline import NO_TIMELINE, Timeline


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

    timeline: Timeline = NO_TIMELINE
    """Told when the role did what."""

    @abstractmethod
    async def step(self) -> Progress:
        """Handles what is ready now."""

    async def settled(self) -> None:
        """Returns when something has ended that a step began and left running; at once where no step does so."""

    async def close(self) -> None:
        """Gives up what still runs; there will be no further step."""

"""What a runtime knows of a role."""

from abc import ABC, abstractmethod
from enum import Enum


class Progress(Enum):
    """What one step achieved."""

    WORKED = "worked"
    """Something was done; there may be more."""
    IDLE = "idle"
    """Nothing is ready yet."""
    DONE = "done"
    """The stream has ended; there will never be more."""


class Role(ABC):
    """A loop body: takes what is ready, does its work, writes its columns."""

    name: str

    patience: float = 0.0
    """Seconds a step may wait for something to become ready; none where roles take turns."""

    @abstractmethod
    async def step(self) -> Progress:
        """Handles what is ready now."""

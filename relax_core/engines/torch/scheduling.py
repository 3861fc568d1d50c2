"""Which of the waiting trajectories are decoded next."""

import threading
from bisect import insort
from collections.abc import Iterable, Sequence

from relax_core.engines.torch.config import TorchEngineConfig
from relax_core.engines.torch.trajectory import TorchTrajectory

LOT = 8
"""Where not all that wait find room, they enter an eighth of those that run at a time: each entry costs a pass through
the model of its own, and a prompt is shared only by those that enter together."""


class Queue:
    """Trajectories that wait for room: higher priority first, then in order of arrival.

    It is filled from the event loop and emptied on the model's thread.

    Args:
        config: Bounds what is decoded together.
    """

    def __init__(self, config: TorchEngineConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._waiting: list[TorchTrajectory] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, trajectories: Iterable[TorchTrajectory]) -> None:
        """Lets trajectories wait."""
        with self._lock:
            for trajectory in trajectories:
                insort(self._waiting, trajectory, key=lambda each: (-each.request.priority, each.arrival))

    def take(self, running: Sequence[TorchTrajectory]) -> list[TorchTrajectory]:
        """Those that enter now beside others that run; no one overtakes a trajectory for which there is no room."""
        with self._lock:
            count = self._fitting(running) if self._waiting else 0
            if count < len(self._waiting) and count * LOT < len(running):
                return []
            lot, self._waiting = self._waiting[:count], self._waiting[count:]
            return lot

    def take_aborted(self) -> list[TorchTrajectory]:
        """Those that were aborted while they waited."""
        with self._lock:
            aborted = {each for each in self._waiting if each.aborted}
            self._waiting = [each for each in self._waiting if each not in aborted]
            return list(aborted)

    def _fitting(self, running: Sequence[TorchTrajectory]) -> int:
        longest = max((each.longest for each in running), default=0)
        for count, trajectory in enumerate(self._waiting):
            rows = len(running) + count + 1
            longest = max(longest, trajectory.longest)
            if rows > 1 and (rows > self._config.max_batch_rows or rows * longest > self._config.max_batch_tokens):
                return count
        return len(self._waiting)

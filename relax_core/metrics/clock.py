"""What a run costs: wall and CPU time."""

import resource
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Elapsed:
    """Seconds since a clock was started.

    Args:
        wall: By the monotonic clock.
        cpu: User and system time of all threads of this process.
        children: User and system time of its child processes, and of theirs, as far as they have ended and were
            waited for.
    """

    wall: float
    cpu: float
    children: float


class CpuClock:
    """Starts when it is made."""

    def __init__(self) -> None:
        self._start = _now()

    def elapsed(self) -> Elapsed:
        """Seconds since the start."""
        now, start = _now(), self._start
        return Elapsed(now.wall - start.wall, now.cpu - start.cpu, now.children - start.children)


def _now() -> Elapsed:
    return Elapsed(time.monotonic(), _cpu(resource.RUSAGE_SELF), _cpu(resource.RUSAGE_CHILDREN))


def _cpu(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime

"""What a run costs: wall and CPU time, and memory."""

import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path

STATUS = Path("/proc/self/status")


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


def peak_memory_mb() -> float:
    """Largest resident memory of this process so far, in MB of 10^6 bytes."""
    if STATUS.exists():
        # Not ``ru_maxrss``: on Linux that begins with what the process was started by has held.
        peak = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024 / 1e6
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Bytes on macOS, units of 1024 bytes elsewhere.
    return held / 1e6 if sys.platform == "darwin" else held * 1024 / 1e6


def _now() -> Elapsed:
    return Elapsed(time.monotonic(), _cpu(resource.RUSAGE_SELF), _cpu(resource.RUSAGE_CHILDREN))


def _cpu(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime

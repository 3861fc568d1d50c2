"""CPU seconds of a command with everything that it starts, also what outlives its parent for a while, as Ray's does."""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psutil

LOOK_SECONDS = 0.25


def run_counted(command: Sequence[str], environment: Mapping[str, str], timeout: float) -> float:
    """Runs a command to its end.

    A process is looked at every :data:`LOOK_SECONDS`: what it uses after the last look is not counted.

    Args:
        command: Program and arguments.
        environment: Over that of this process.
        timeout: Seconds until it is killed.

    Returns:
        User and system time of it and its descendants.

    Raises:
        CalledProcessError: It failed.
        TimeoutExpired: It was killed.
    """
    seconds: dict[tuple[int, float], float] = {}
    deadline = time.monotonic() + timeout
    with subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL) as process:
        root = psutil.Process(process.pid)
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
                raise subprocess.TimeoutExpired(command, timeout)
            with suppress(psutil.NoSuchProcess):
                for each in [root, *root.children(recursive=True)]:
                    with suppress(psutil.NoSuchProcess):
                        times = each.cpu_times()
                        seconds[each.pid, each.create_time()] = times.user + times.system
            time.sleep(LOOK_SECONDS)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return sum(seconds.values())

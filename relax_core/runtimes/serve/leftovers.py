"""Ends what is left of a cluster when the process that started it is killed; as a program, which outlives that one."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psutil

GRACE_SECONDS = 20.0
"""Time in which the processes of a cluster leave by themselves. Ray's agents do not: they look for their node only
every few minutes."""

LOOK_SECONDS = 1.0


@contextmanager
def ended_with_this_process(folder: str) -> Iterator[None]:
    """Within, a cluster that this process has started ends with it, however this process ends.

    Args:
        folder: Of the cluster. Its processes are the children of this one that name it in their command line, and
            whatever these have started by now.
    """
    cluster: list[psutil.Process] = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if any(folder in word for word in child.cmdline()):
                cluster += [child, *child.children(recursive=True)]
    command = [sys.executable, "-I", __file__, str(os.getpid()), *(str(process.pid) for process in cluster)]
    # In a session of its own: what kills the group of this process must not kill it.
    watchdog = subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        watchdog.kill()
        watchdog.wait()


def main(starter: int, cluster: Sequence[int]) -> None:
    """Waits for the end of a process, and ends others that have not ended soon after."""
    processes: list[psutil.Process] = []
    for process in cluster:
        with suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(process))
    with suppress(psutil.NoSuchProcess):
        watched = psutil.Process(starter)
        # One that is killed may stay for ever as a process that nobody has waited for.
        while watched.is_running() and watched.status() != psutil.STATUS_ZOMBIE:
            time.sleep(LOOK_SECONDS)
    _, left = psutil.wait_procs(processes, GRACE_SECONDS)
    for each in left:
        with suppress(psutil.NoSuchProcess):
            each.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(process) for process in sys.argv[2:]])

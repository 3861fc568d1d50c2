"""What is left of a cluster ends with the process that started it, and nothing else does."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from relax_core.runtimes.serve import leftovers
from relax_core.runtimes.serve.leftovers import ended_with_this_process, main

SLEEP = "import time; time.sleep(600)"
HAS_A_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}])"
DEADLINE = 60.0


class Sleepers:
    """Processes that are gone when the test is."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def start(self, *arguments: str, code: str = SLEEP) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen([sys.executable, "-c", code, *arguments])
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process


@pytest.fixture
def sleepers() -> Iterator[Sleepers]:
    with ExitStack() as stack:
        yield Sleepers(stack)


def child_of(process: "subprocess.Popen[bytes]") -> psutil.Process:
    while not (children := psutil.Process(process.pid).children()):
        pass
    return children[0]


def test_what_has_not_left_soon_after_its_starter_is_ended(sleepers: Sleepers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "GRACE_SECONDS", 0.1)
    starter, gone, stays, stranger = (sleepers.start() for _ in range(4))
    gone.kill()
    gone.wait()
    starter.kill()
    main(starter.pid, [gone.pid, stays.pid])
    assert stays.wait(DEADLINE) == -9
    assert stranger.poll() is None


def test_of_this_process_only_the_cluster_is_watched_and_it_is_left_alone_by_one_that_ends_well(
    sleepers: Sleepers, tmp_path: Path
) -> None:
    node = sleepers.start(f"--log-dir={tmp_path}/session/logs", code=HAS_A_CHILD)
    agent, stranger = child_of(node), sleepers.start("--log-dir=/tmp/other/session")
    try:
        with ended_with_this_process(str(tmp_path)):
            (watchdog,) = (child for child in psutil.Process().children() if leftovers.__file__ in child.cmdline())
            assert [int(word) for word in watchdog.cmdline()[-3:]] == [psutil.Process().pid, node.pid, agent.pid]
        assert not watchdog.is_running()
        assert node.poll() is None and agent.is_running() and stranger.poll() is None
    finally:
        agent.kill()

"""Closing a pool in the worst moments: no worker outlives it, and none says that it was interrupted."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from relax_core.rewards.processes import WorkerPool


class SlowToArrive:
    """Takes its time in a worker's start, before the worker gets at the pool's locks."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __setstate__(self, state: dict[str, float]) -> None:
        time.sleep(state["seconds"])


def load(_: SlowToArrive) -> Callable[[str], None]:
    return ignore_termination


def ignore_termination(path: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(path).write_text(str(os.getpid()))
    time.sleep(1000)


def workers() -> set[int]:
    """This process's children that multiprocessing has spawned and that have not ended."""
    found = set()
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # so says a process that has ended, too
            found |= {child.pid} if "pipe_handle" in " ".join(child.cmdline()) else set()
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
async def pool(counts):
    """Two workers, started; closed again at the end of the test at the latest."""
    before = workers()
    pool = WorkerPool(load, (SlowToArrive(0.5),), 2, 60.0, lambda name, number: counts.update({name: number}))
    await pool.start()
    yield pool
    await pool.close()
    assert workers() <= before


async def test_closing_while_a_worker_starts_and_another_ignores_its_signal_is_silent(pool, capfd, tmp_path):
    path = tmp_path / "pid"
    busy = asyncio.create_task(pool.call_all([("a text", (str(path),))]))
    await until(lambda: path.exists() and path.read_text() != "")
    before = workers()
    [idle] = before - {int(path.read_text())}
    psutil.Process(idle).kill()
    await until(lambda: bool(workers() - before))
    await pool.close()
    busy.cancel()
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")


async def test_closing_while_all_workers_start_is_silent(capfd):
    pool = WorkerPool(load, (SlowToArrive(0.5),), 3, 60.0, lambda name, number: None)
    before = workers()
    starting = asyncio.create_task(pool.start())
    await until(lambda: len(workers() - before) == 3)
    await pool.close()
    starting.cancel()
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")

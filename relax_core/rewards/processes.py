"""A function in worker processes under a hard time limit.

Code that may hang or crash cannot be stopped inside a process: an alarm works only in the main thread, and waiting
less long for a thread leaves it running. So it runs in a process that can be ended and replaced.
"""

import asyncio
import faulthandler
import multiprocessing
import os
import sysconfig
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.context import SpawnContext
from multiprocessing.synchronize import RLock
from typing import Any

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from relax_core.api.errors import ConfigError, DeadlineExceeded, RelaxError, RewardError

START_SECONDS = 120.0
"""Longest time for the first worker to import what it needs."""

CLOSE_SECONDS = 30.0
"""Longest time to end all workers."""

GRACE_SECONDS = 5.0
"""How long after the time limit a worker that nobody has ended ends itself."""


@dataclass(frozen=True)
class Failure:
    """An exception in a worker, as text: exceptions themselves may not survive pickling."""

    message: str


class LastingLocks(SpawnContext):
    """Keeps the locks it makes as long as it lives.

    pebble drops a pool's locks before it ends the workers. One that starts in between would find them gone, and say so
    in a traceback.
    """

    def __init__(self) -> None:
        self._locks: list[RLock] = []

    def RLock(self) -> RLock:
        """A lock for processes, as of multiprocessing."""
        self._locks.append(super().RLock())
        return self._locks[-1]


class WorkerPool:
    """Worker processes that have loaded one function; a hung or dead one is replaced, and counted.

    Args:
        load: Runs once in each worker and returns the function. Importable, like its arguments picklable. Its time
            does not count against the limit.
        arguments: Of ``load``.
        workers: Number of processes.
        limit: Longest time in seconds for one call, from when a worker takes it up.
        count: The context's ``count``; adds to ``reward/timed_out`` and ``reward/worker_died``.
    """

    def __init__(
        self,
        load: Callable[..., Callable[..., Any]],
        arguments: tuple[Any, ...],
        workers: int,
        limit: float,
        count: Callable[[str, int], None],
    ) -> None:
        self._load = (load, arguments)
        self._workers = workers
        self._limit = limit
        self._count = count
        self._pool: ProcessPool | None = None

    async def start(self) -> None:
        """Starts the workers and waits until the first has loaded the function.

        Raises:
            ConfigError: The function could not be loaded.
        """
        self._pool = self._open()
        failure: Failure | None
        try:
            async with asyncio.timeout(START_SECONDS):
                failure = await asyncio.wrap_future(self._pool.schedule(_load_failure))
        except TimeoutError:
            failure = Failure(f"loading ran past {START_SECONDS:g} s")
        except (ProcessExpired, BrokenProcessPool):
            failure = Failure("the worker process died while loading; its own message is on stderr")
        if failure is not None:
            await self.close()
            raise ConfigError(failure.message)

    async def call_all(self, calls: Sequence[tuple[str, tuple[Any, ...]]]) -> list[Any]:
        """The function's results for several argument tuples, in order, computed side by side.

        Args:
            calls: What opens the message of an error, and picklable arguments.

        Raises:
            RewardError: The function raised, ran past the limit, or ended its process: the error of the first call in
                order that failed, after all have ended.
        """
        results = await asyncio.gather(*(self._call(*call) for call in calls), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    async def _call(self, what: str, arguments: tuple[Any, ...]) -> Any:
        try:
            result = await asyncio.wrap_future(await self._schedule(arguments))
        except TimeoutError:
            self._count("reward/timed_out", 1)
            raise RewardError(f"{what} ran past {self._limit:g} s; its process was ended") from None
        except ProcessExpired as error:
            self._count("reward/worker_died", 1)
            raise RewardError(f"{what} ended its process with exit code {error.exitcode}") from None
        except BrokenProcessPool:  # counted when the next call opens the pool again
            raise RewardError(f"{what} lost its worker processes: one of them died between two calls") from None
        if isinstance(result, Failure):
            raise RewardError(f"{what} {result.message}")
        return result

    async def close(self) -> None:
        """Ends the workers, whatever they do.

        Raises:
            DeadlineExceeded: They are not gone after ``CLOSE_SECONDS``.
        """
        pool, self._pool = self._pool, None
        if pool is None:
            return
        pool.stop()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.to_thread(pool.join)
        except TimeoutError:
            raise DeadlineExceeded(f"the reward's worker processes did not end within {CLOSE_SECONDS:g} s") from None

    def _open(self) -> ProcessPool:
        return ProcessPool(self._workers, initializer=_initialise, initargs=self._load, context=LastingLocks())

    async def _schedule(self, arguments: tuple[Any, ...]) -> ProcessFuture[Any]:
        if self._pool is None:
            raise RewardError("the reward is not started")
        if not self._pool.active:  # pebble gives up for good when an idle worker dies, for instance for lack of memory
            broken, self._pool = self._pool, self._open()
            self._count("reward/worker_died", 1)
            await asyncio.to_thread(broken.join)
        return self._pool.schedule(_call, (self._limit + GRACE_SECONDS, *arguments), timeout=self._limit)


_function: Callable[..., Any] | Failure = Failure("not loaded")
"""In a worker: what it calls, or why it cannot."""


def _initialise(load: Callable[..., Callable[..., Any]], arguments: tuple[Any, ...]) -> None:
    global _function  # noqa: PLW0603 - a worker has one function for life
    os.dup2(2, 1)  # what the function prints goes to stderr: stdout is the command's own
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _function = load(*arguments)
    except BaseException as error:
        _function = Failure(describe(error))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _load_failure() -> Failure | None:
    return _function if isinstance(_function, Failure) else None


def _call(patience: float, *arguments: Any) -> Any:
    if isinstance(_function, Failure):
        return _function
    # The parent may be gone while a call holds the interpreter's lock; this watchdog is a thread of C.
    faulthandler.dump_traceback_later(patience, exit=True)
    try:
        return _function(*arguments)
    except BaseException as error:
        return Failure(describe(error))
    finally:
        faulthandler.cancel_dump_traceback_later()


def describe(error: BaseException) -> str:
    """``raised ValueError: text (file:line)``: the innermost line outside installed packages; our own errors as is."""
    if isinstance(error, RelaxError):
        return str(error)
    installed = ("<", *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    own = [frame for frame in frames if not frame.filename.startswith(installed)] or frames
    place = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    return f"raised {type(error).__name__}: {error}{place}"

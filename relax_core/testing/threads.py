"""Running threads in a test so that none is left hanging and no error is lost."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Any

DEADLINE = 20.0
"""Seconds that a test gives one wait; far more than it needs."""


def in_threads(*works: Callable[[], Any]) -> list[Any]:
    """Runs all at once and returns their results.

    Raises:
        TimeoutError: One did not end; the threads are daemons and do not keep the process alive.
        BaseException: Whatever the first of them, in the order given, has raised.
    """
    futures: list[Future[Any]] = [Future() for _ in works]
    for work, future in zip(works, futures, strict=True):
        Thread(target=_run, args=(work, future), daemon=True).start()
    deadline = time.monotonic() + 2 * DEADLINE
    return [future.result(max(0.0, deadline - time.monotonic())) for future in futures]


def _run(work: Callable[[], Any], future: Future[Any]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)

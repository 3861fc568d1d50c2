"""Ranks as processes of this machine: started together, asked together, ended together.

Each is forked from one process that has imported Megatron-Core once, which takes longer than all the rest of a start.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from relax_core.api.errors import DeadlineExceeded, RelaxError, TrainingError

IMPORTED_ONCE = ["relax_megatron.notices", "relax_megatron.rank"]
GRACE_SECONDS = 5.0
"""How long the other ranks may take to answer after one has failed; they may be waiting for it in a collective."""

CLOSE_SECONDS = 10.0
"""How long ranks may take to leave before they are ended."""


@dataclass(frozen=True)
class Failure:
    """An exception in a rank; its own object where it is one of ours, which can be pickled, else its text."""

    error: RelaxError | str


class RankProcesses:
    """A group of processes, each holding one object; when one is lost, all are ended, since they work only together.

    Args:
        build: Called once in each process; importable.
        arguments: Of ``build``, per rank; picklable.
        start_timeout: Longest time in seconds until every object is built.
        call_timeout: Longest time in seconds for one call.
    """

    def __init__(
        self,
        build: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        start_timeout: float,
        call_timeout: float,
    ) -> None:
        self._call_timeout = call_timeout
        self._ended = ""
        self._threads = ThreadPoolExecutor(len(arguments), thread_name_prefix="rank")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED_ONCE)
        self._connections: list[Connection] = []
        self._processes = []
        for rank, each in enumerate(arguments):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, build, each), name=f"rank {rank}", daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)
        try:
            self._gather("start", [self._threads.submit(each.recv) for each in self._connections], start_timeout)
        except RelaxError as error:
            self.end(str(error))
            raise

    @property
    def pids(self) -> list[int | None]:
        """Process ids in the order of the ranks."""
        return [process.pid for process in self._processes]

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """The results of a method of every object, in the order of the ranks.

        Raises:
            RelaxError: What a rank raised.
            TrainingError: A rank died, or raised an error of another kind; or an argument cannot be pickled.
            DeadlineExceeded: A rank did not answer in time.
        """
        if self._ended:
            raise TrainingError(f"trainer: the ranks were ended: {self._ended}")
        try:
            request = pickle.dumps((method, arguments))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TrainingError(f"trainer: what {method} is given cannot be sent to the ranks: {error}") from error
        exchanges = [self._threads.submit(_exchange, connection, request) for connection in self._connections]
        return self._gather(method, exchanges, self._call_timeout)

    def _gather(self, what: str, answers: Sequence[Future[Any]], seconds: float) -> list[Any]:
        """Waits for all answers; if any is wanting, tells why, by the rank that is nearest to the cause."""
        try:
            pending = _settle(answers, seconds)
        except BaseException:
            self.end(f"{what} was interrupted")
            raise
        problems = [self._problem(what, rank, answer) for rank, answer in enumerate(answers) if answer not in pending]
        found = sorted((each for each in problems if each is not None), key=lambda each: each[0])
        if found:
            error = found[0][1]
            if pending or any(answer.exception() for answer in answers):
                self.end(str(error))
            raise error
        if pending:
            late = ", ".join(str(rank) for rank, answer in enumerate(answers) if answer in pending)
            self.end(f"{what} ran past {seconds:g} s")
            raise DeadlineExceeded(f"trainer: rank {late} of {len(answers)} did not answer {what} within {seconds:g} s")
        return [answer.result() for answer in answers]

    def _problem(self, what: str, rank: int, answer: Future[Any]) -> tuple[int, RelaxError] | None:
        """The error of an answer, after how near it is to the cause: when a rank dies, others lose their connection."""
        if answer.exception() is not None:
            self._processes[rank].join(1.0)
            code = self._processes[rank].exitcode
            return 0, TrainingError(f"trainer: rank {rank} died during {what} (exit code {code})")
        result = answer.result()
        if not isinstance(result, Failure):
            return None
        if isinstance(result.error, RelaxError):
            return 1, result.error
        return 2, TrainingError(f"trainer: rank {rank} failed during {what}: {result.error}")

    def end(self, reason: str) -> None:
        """Ends every process at once."""
        self._ended = self._ended or reason
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(CLOSE_SECONDS)
        self._threads.shutdown(wait=False)
        for connection in self._connections:
            connection.close()

    def close(self) -> None:
        """Lets every process leave by itself, and ends those that do not."""
        if not self._ended:
            for connection in self._connections:
                connection.close()
            deadline = time.monotonic() + CLOSE_SECONDS
            for process in self._processes:
                process.join(max(0.0, deadline - time.monotonic()))
        self.end("closed")


def _settle(answers: Sequence[Future[Any]], seconds: float) -> set[Future[Any]]:
    """Waits until all answers are there, or one is a failure and the others had their grace; returns those missing."""
    pending = set(answers)
    deadline = time.monotonic() + seconds
    failed = False
    while pending and (left := deadline - time.monotonic()) > 0:
        done, pending = wait(pending, left, FIRST_COMPLETED)
        if not failed and any(each.exception() or isinstance(each.result(), Failure) for each in done):
            failed = True
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
    return pending


def _exchange(connection: Connection, request: bytes) -> Any:
    connection.send_bytes(request)
    return connection.recv()


def _serve(connection: Connection, build: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """A rank's life: builds its object, answers calls, and leaves when the other end is closed."""
    os.setpgrp()  # an interrupt on the terminal is for the front, which then ends its ranks
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    try:
        built = build(*arguments)
    except Exception as error:
        connection.send(_failure(error))
        return
    connection.send(None)
    while True:
        try:
            method, arguments = pickle.loads(connection.recv_bytes())
        except EOFError:
            built.close()
            return
        connection.send(_answer(getattr(built, method), arguments))


def _answer(method: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return method(*arguments)
    except Exception as error:
        return _failure(error)


def _failure(error: Exception) -> Failure:
    if isinstance(error, RelaxError):
        return Failure(error)
    traceback.print_exception(error)
    return Failure(f"{type(error).__name__}: {error}")


def _leave_with_parent() -> None:
    """A rank in a collective or a computation does not see its connection close."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)

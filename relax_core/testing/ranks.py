"""Two processes of one gloo group, for what data-parallel ranks do together."""

import multiprocessing
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import distributed

RANKS = 2
DEADLINE = 300.0
"""Seconds for both ranks to start, or to do one work; far more than they need."""
GLOO_DEADLINE = timedelta(seconds=240)
PROCESSES = multiprocessing.get_context("forkserver")


class TwoRanks(AbstractContextManager["TwoRanks"]):
    """Processes that do one work after the other, both at once. They end with the block."""

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory()
        self._ranks: list[tuple[BaseProcess, Connection]] = []
        for rank in range(RANKS):
            ours, theirs = PROCESSES.Pipe()
            process = PROCESSES.Process(
                target=_serve, args=(theirs, Path(self._folder.name) / "store", rank), daemon=True
            )
            process.start()
            theirs.close()
            self._ranks.append((process, ours))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, connection in self._ranks:
            connection.close()
            process.kill()
            process.join()
        self._folder.cleanup()

    def run(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What ``work(rank, *arguments)`` returns on each rank; both can be pickled.

        Raises:
            AssertionError: A rank failed, died, or did not answer in time.
        """
        for _, connection in self._ranks:
            connection.send((work, arguments))
        answers = [_answer(rank, connection) for rank, (_, connection) in enumerate(self._ranks)]
        for rank, (done, result) in enumerate(answers):
            assert done, f"rank {rank}: {result}"
        return [result for _, result in answers]


def _answer(rank: int, connection: Connection) -> tuple[bool, Any]:
    assert connection.poll(DEADLINE), f"rank {rank} gave no answer within {DEADLINE:.0f} s: it waits for the other one"
    try:
        done, result = connection.recv()
    except EOFError:
        return False, "its process died"
    return done, result


def _serve(connection: Connection, store: Path, rank: int) -> None:
    """The life of a rank."""
    torch.set_num_threads(1)
    shared = distributed.FileStore(str(store), RANKS)
    distributed.init_process_group("gloo", store=shared, timeout=GLOO_DEADLINE, world_size=RANKS, rank=rank)
    while True:
        try:
            work, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = True, work(rank, *arguments)
        except Exception as error:
            answer = False, f"{type(error).__name__}: {error}"
        connection.send(answer)

"""Other processes with their own ends of a transport: they work when told to, and can be killed."""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from relax_core.api.transport import Transport
from relax_core.testing.threads import DEADLINE

Connect = Callable[[], Transport]
"""Makes another end of a transport that is open already, in whatever process calls it; can be pickled."""

START_SECONDS = 60.0
"""What a new process may need until it has imported everything, on a busy machine."""


class Peer:
    """A process that runs one function after the other, each on an end of the transport it is given."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def start(self, connect: Connect, work: Callable[..., Any], *arguments: Any) -> None:
        """Begins ``work(end, *arguments)``; module-level functions only, as everything is pickled."""
        self._connection.send((connect, work, arguments))

    def result(self, timeout: float = 2 * DEADLINE) -> Any:
        """What the work returned.

        Raises:
            TimeoutError: It did not end.
            BaseException: What it raised, with the traceback of the other process as a note.
        """
        if not self._connection.poll(START_SECONDS + timeout):
            raise TimeoutError(f"process {self._process.pid} still works after {timeout:g} s")
        result, error = self._connection.recv()
        if error is not None:
            raise error
        return result

    def run(self, connect: Connect, work: Callable[..., Any], *arguments: Any) -> Any:
        """:meth:`start` and :meth:`result`."""
        self.start(connect, work, *arguments)
        return self.result()

    def kill(self) -> None:
        """SIGKILL: nothing is tidied up by the process itself."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()
        self._connection.close()

    @property
    def alive(self) -> bool:
        """Whether :meth:`kill` was not called yet."""
        return self._process.exitcode is None


class Peers:
    """Processes that tests use one after the other, as starting one takes seconds."""

    def __init__(self) -> None:
        self._peers: list[Peer] = []

    def get(self, count: int) -> list[Peer]:
        """So many that live. Whoever starts work on one waits for its result, or kills it."""
        self._peers = [peer for peer in self._peers if peer.alive]
        self._peers += [Peer() for _ in range(count - len(self._peers))]
        return self._peers[:count]

    def close(self) -> None:
        """Ends them all."""
        for peer in self._peers:
            if peer.alive:
                peer.kill()


def _work(connection: Connection) -> None:
    while True:
        connect, work, arguments = connection.recv()
        outcome: tuple[Any, Exception | None]
        try:
            outcome = (work(connect(), *arguments), None)
        except Exception as error:
            error.add_note(traceback.format_exc())
            outcome = (None, error)
        connection.send(outcome)

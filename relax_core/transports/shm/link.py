"""The way from one process to the server: as many connections as there are calls at the same time."""

import os
import socket
import struct
import uuid
import weakref
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relax_core.api.errors import DeadlineExceeded, TransportError, TransportLost
from relax_core.transports.memory.declarations import Declarations
from relax_core.transports.shm.wire import CHUNK, SOCKET, Messages, address, encoded, error_of, receive

ASK, WAIT, BRING = USES = "ask", "wait", "bring"
"""What lines are used for. Those on which calls wait have a limit of their own, and keep it; those that bring files are
listened to in another way.
"""

_TIMEVAL = struct.Struct("ll")


@dataclass
class Files:
    """Descriptors that go with a call and come with its answer."""

    sent: int | None = None
    received: list[int] = field(default_factory=list)


class Line:
    """A connection, for one call at a time.

    Args:
        path: The server's socket.
        seconds: What connecting may take.

    Raises:
        BlockingIOError: There is no connection within ``seconds``.
        OSError: The server is gone.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._messages = Messages()
        self._seconds = 0.0
        try:
            self._limit(seconds)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(seconds))
            with address(path) as name:
                self.socket.connect(name)
        except OSError:
            self.socket.close()
            raise

    def call(self, message: bytes, seconds: float, files: Files | None = None) -> Any:
        """The answer; ``files`` go with the message and come with it. Errors as above."""
        self._limit(seconds)
        if files is not None and files.sent is not None:
            message = message[socket.send_fds(self.socket, [message], [files.sent]) :]
        self.socket.sendall(message)
        while True:
            if files is None:
                data = self.socket.recv(CHUNK)
            else:
                data, more = receive(self.socket)
                files.received += more
            if not data:
                raise ConnectionResetError("it has closed the connection")
            if answers := self._messages.feed(data):
                return answers[0]

    def _limit(self, seconds: float) -> None:
        """Of waits in the kernel, which a timeout of the socket's own would make twice as many."""
        if seconds != self._seconds:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))
            self._seconds = seconds


def _timeval(seconds: float) -> bytes:
    return _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6))


class Link:
    """Calls to the server of a run, from any thread. Its connections live as long as it does.

    Args:
        folder: Of the run, where the server's socket is.
        run_id: Named in errors.
        seconds: What a call may take beyond the time it was asked to wait.
    """

    def __init__(self, folder: Path, run_id: str, seconds: float) -> None:
        self.done: deque[int] = deque()
        """Answers that this process has no use for any more; any thread adds to them at any time."""
        self.freed: deque[tuple[int, int]] = deque()
        """Blocks of this process, by arena and start, that the server says it may use again."""
        self.unused: deque[int] = deque()
        """Arenas of others that the server says are gone."""
        self._path = folder / SOCKET
        self._run_id = run_id
        self._seconds = seconds
        self._end = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._idle: dict[str, deque[Line]] = {use: deque() for use in USES}
        self._lives: deque[Line] = deque()
        """A line that no call is made on, or several: as long as it is there, the server knows that this process lives,
        also when calls have failed and given their lines up."""
        self._server = ""
        self._declared: Declarations | None = None
        weakref.finalize(self, _close, self._lives, *self._idle.values())

    @property
    def declared(self) -> Declarations:
        """What the run has declared; errors as of :meth:`call`."""
        if self._declared is None:
            self._begin()
        assert self._declared is not None
        return self._declared

    def call(self, method: str, *arguments: Any, wait: float = 0.0, files: Files | None = None) -> Any:
        """Calls a method of :class:`relax_core.transports.shm.service.Service`, which may wait for so many seconds.

        Raises:
            TransportError: The server is gone, or what it raised.
            DeadlineExceeded: It has not answered in time, or what it raised.
        """
        use = BRING if files is not None else WAIT if wait > 0 else ASK
        idle = self._idle[use]
        try:
            line = idle.pop()
        except IndexError:
            line = self._line(use)
        done: list[int] = []
        while self.done:
            try:
                done.append(self.done.popleft())
            except IndexError:  # another thread has taken the last
                break
        try:
            message = encoded([method, done, *arguments])
        except (TypeError, ValueError, OverflowError) as error:
            idle.append(line)  # not given up: the server would take it that its last answer was never read
            self.done.extend(done)
            raise TransportError(f"{method}: an argument cannot be sent: {error}") from error
        failure, result = self._ask(line, method, message, self._seconds + max(wait, 0.0), files)
        idle.append(line)
        if failure:
            raise error_of(failure)
        return result

    def _line(self, use: str) -> Line:
        self._begin()
        return self._connected(use)

    def _begin(self) -> None:
        """Makes this process known to the server, for as long as it lives."""
        if not self._lives:
            self._lives.append(self._connected(ASK))

    def _connected(self, use: str) -> Line:
        try:
            line = Line(self._path, self._seconds)
        except BlockingIOError as error:
            raise self._late("a connection") from error
        except OSError as error:
            raise self._gone(error) from error
        hello = encoded(["hello", [], self._end, use == BRING])
        _, (server, declared) = self._ask(line, "hello", hello, self._seconds)
        if self._declared is None:
            self._server, self._declared = server, Declarations.of(declared)
        elif server != self._server:
            line.socket.close()
            raise self._gone(ConnectionResetError("another one has taken its place"))
        return line

    def _ask(self, line: Line, method: str, message: bytes, seconds: float, files: Files | None = None) -> Any:
        """The error and the result of a call. A line that fails is given up."""
        try:
            failure, result, freed, unused = line.call(message, seconds, files)
        except BlockingIOError as error:
            line.socket.close()
            raise self._late(method) from error
        except OSError as error:
            line.socket.close()
            raise self._gone(error) from error
        if freed:
            self.freed.extend(freed)
        if unused:
            self.unused.extend(unused)
        return failure, result

    def _late(self, what: str) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"{what}: the transport's server of run {self._run_id!r} has not answered within {self._seconds:g} s"
        )

    def _gone(self, error: OSError) -> TransportError:
        return TransportLost(f"the transport of run {self._run_id!r} is gone: {error}")


def _close(*idle: deque[Line]) -> None:
    for lines in idle:
        while lines:
            lines.pop().socket.close()

"""The process that serves a transport: sockets, and calls that wait. It ends when the process that opened it does."""

import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relax_core.api.errors import TransportError
from relax_core.transports.memory.declarations import Declarations
from relax_core.transports.shm.blocks import Arena, End
from relax_core.transports.shm.service import Service, Waiting
from relax_core.transports.shm.wire import SOCKET, Messages, address, encoded, error_state, receive

READY = b"ready\n"
"""What the process says once its socket is there."""

STDIN = 0


@dataclass(eq=False)
class Connection:
    """One connection of an end, which makes one call at a time on it.

    ``unheard`` is what the last answer gave: the number of its pins and the freed blocks it told of. An end that gives
    a connection up without having made another call on it has not read that answer. ``file_of`` is an arena whose file
    goes with the next bytes.
    """

    socket: socket.socket
    end: End = field(default_factory=End)
    messages: Messages = field(default_factory=Messages)
    descriptors: list[int] = field(default_factory=list)
    outgoing: bytes = b""
    file_of: Arena | None = None
    unheard: tuple[int, list[tuple[int, int]]] = (0, [])


@dataclass(eq=False)
class Parked:
    """A call that waits until ``until``, or for a change."""

    connection: Connection
    work: Waiting
    until: float


class Server:
    """Answers calls one after the other; nothing else runs in its process.

    Args:
        listener: Bound and listening.
        declared: Columns and consumers.
        capacity: Bytes of rows and blobs at which ``append`` waits; 0 is unbounded.
    """

    def __init__(self, listener: socket.socket, declared: Declarations, capacity: int) -> None:
        self._service = Service(declared, capacity, self._note_change)
        self._ends: dict[str, End] = {}
        self._parked: list[Parked] = []
        self._is_changed = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._own_calls: dict[str, Callable[..., Any]] = {
            "hello": self._hello,
            "add_arena": self._add_arena,
            "arena": self._arena,
        }

    def serve(self) -> None:
        """Until standard input ends, which the process that opened the transport holds."""
        self._selector.register(STDIN, selectors.EVENT_READ)
        while True:
            for key, events in self._selector.select(self._patience()):
                if key.fileobj == STDIN:
                    return
                if isinstance(key.data, Connection):
                    self._attend(key.data, events)
                else:
                    key.data(key.fileobj)
            self._resume()

    def _note_change(self) -> None:
        self._is_changed = True

    def _accept(self, listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        accepted.setblocking(False)
        self._selector.register(accepted, selectors.EVENT_READ, Connection(accepted))

    def _attend(self, connection: Connection, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._send(connection)
            if events & selectors.EVENT_READ:
                self._receive(connection)
        except OSError:  # the other side is gone
            self._disconnect(connection)

    def _receive(self, connection: Connection) -> None:
        data, descriptors = receive(connection.socket)
        if not data:
            self._disconnect(connection)
            return
        connection.unheard = (0, [])
        connection.descriptors += descriptors
        for method, done, *arguments in connection.messages.feed(data):
            for answer in done:
                connection.end.unpin(answer)
            self._call(connection, method, arguments)

    def _disconnect(self, connection: Connection) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._parked = [parked for parked in self._parked if parked.connection is not connection]
        end, (answer, freed) = connection.end, connection.unheard
        end.unpin(answer)
        end.freed += freed
        end.connections -= 1
        if end.connections == 0:
            end.leave()
            self._ends = {key: other for key, other in self._ends.items() if other is not end}

    def _call(self, connection: Connection, method: str, arguments: list[Any]) -> None:
        with self._answering(connection) as answer:
            if method in self._own_calls:
                answer.append(self._own_calls[method](connection, *arguments))
                return
            if method not in self._service.calls:
                raise TransportError(f"unknown call {method!r}")
            result = self._service.calls[method](connection.end, *arguments)
            if isinstance(result, Generator):
                self._advance(Parked(connection, result, 0.0), answer)
            else:
                answer.append(result)

    def _advance(self, parked: Parked, answer: list[Any]) -> None:
        """Goes on with a call: it waits again, or has its result put into ``answer``."""
        try:
            parked.until = next(parked.work)
        except StopIteration as stop:
            answer.append(stop.value)
        else:
            self._parked.append(parked)

    @contextmanager
    def _answering(self, connection: Connection) -> Iterator[list[Any]]:
        """Sends the result that is put into the list, or the error that is raised, if there is either."""
        results: list[Any] = []
        end, before, error = connection.end, connection.end.answers, None
        try:
            yield results
        except Exception as raised:  # told to the caller; whatever it was, other ends must not lose their server
            error = error_state(raised)
        if results or error:
            freed, end.freed = end.freed, []
            unused, end.unused = end.unused, []
            connection.unheard = (end.answers if end.answers > before else 0, freed)
            connection.outgoing += encoded([error, results[0] if results else None, freed, unused])
            self._send(connection)

    def _resume(self) -> None:
        """Goes on with calls whose time has come, and with all of them after a change."""
        while self._parked:
            changed, self._is_changed = self._is_changed, False
            now = time.monotonic()
            due = [parked for parked in self._parked if changed or parked.until <= now]
            if not due:
                return
            for parked in due:
                self._parked.remove(parked)
                try:
                    with self._answering(parked.connection) as answer:
                        self._advance(parked, answer)
                except OSError:
                    self._disconnect(parked.connection)

    def _patience(self) -> float | None:
        first = min([parked.until for parked in self._parked], default=None)
        return None if first is None else max(0.0, first - time.monotonic())

    def _send(self, connection: Connection) -> None:
        try:
            if connection.file_of is None:
                sent = connection.socket.send(connection.outgoing)
            else:
                sent = socket.send_fds(connection.socket, [connection.outgoing], [connection.file_of.descriptor])
                connection.file_of = None
        except BlockingIOError:
            sent = 0
        connection.outgoing = connection.outgoing[sent:]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outgoing else 0)
        if self._selector.get_key(connection.socket).events != events:
            self._selector.modify(connection.socket, events, connection)

    # Calls that concern the connection.

    def _hello(self, connection: Connection, end: str) -> dict[str, Any]:
        """The first call on each connection: which process it is of."""
        connection.end = self._ends.setdefault(end, End())
        connection.end.connections += 1
        return self._service.hello(connection.end)

    def _add_arena(self, connection: Connection, nbytes: int) -> int:
        """The message brings the file."""
        return self._service.add_arena(connection.end, connection.descriptors.pop(), nbytes)

    def _arena(self, connection: Connection, key: int) -> int:
        """The size; the answer brings the file."""
        connection.file_of = self._service.arena(connection.end, key)
        return connection.file_of.nbytes


def main(folder: str) -> None:
    """Serves until the process that started this one closes its standard input or dies.

    Args:
        folder: Where the socket is put, under its own name only when it listens.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the process that opened the transport says when it ends
    os.umask(0o077)
    settings = json.loads(sys.stdin.readline())
    path, ours = Path(folder, SOCKET), Path(folder, f"{SOCKET}-{os.getpid()}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with address(ours) as name:
        listener.bind(name)
    listener.listen(128)
    ours.replace(path)
    inode = path.stat().st_ino
    os.write(sys.stdout.fileno(), READY)
    try:
        Server(listener, Declarations.of(settings["declared"]), settings["capacity"]).serve()
    finally:
        if path.exists() and path.stat().st_ino == inode:
            path.unlink()

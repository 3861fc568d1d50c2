"""The process that serves a transport: sockets, and calls that wait. It ends when the process that opened it does."""

import errno
import json
import math
import os
import resource
import select
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import GeneratorType
from typing import Any

from relax_core.api.errors import TransportError
from relax_core.transports.memory.declarations import Declarations
from relax_core.transports.shm.blocks import Arena, End
from relax_core.transports.shm.service import Service, Waiting
from relax_core.transports.shm.wire import CHUNK, SOCKET, Messages, address, encoded, error_state, receive

READY = b"ready\n"
"""What the process says once its socket is there."""

STDIN = 0

NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of a process, or a system, that can have no further connection."""

NOTHING: tuple[int, Sequence[tuple[int, int]]] = (0, ())
"""What an end has not heard of when it has heard of everything."""


@dataclass(eq=False)
class Connection:
    """One connection of an end, which makes one call at a time on it.

    ``unheard`` is what the last answer gave: the number of its pins and the freed blocks it told of. An end that gives
    a connection up without having made another call on it has not read that answer. Files come on connections that
    ``brings_files``; ``file_of`` is an arena whose file goes with the next bytes. A slow end has not taken all of
    ``outgoing`` yet.
    """

    socket: socket.socket
    end: End = field(default_factory=End)
    messages: Messages = field(default_factory=Messages)
    brings_files: bool = False
    descriptors: list[int] = field(default_factory=list)
    outgoing: bytes = b""
    file_of: Arena | None = None
    is_slow: bool = False
    unheard: tuple[int, Sequence[tuple[int, int]]] = NOTHING


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
        self._name = uuid.uuid4().hex
        self._declared = declared.state()
        self._service = Service(declared, capacity, self._note_change)
        self._calls = self._service.calls
        self._ends: dict[str, End] = {}
        self._parked: list[Parked] = []
        self._is_changed = False
        self._is_full = False
        """Whether no further connection can be opened, for now."""
        self._listener = listener
        self._connections: dict[int, Connection] = {}
        """By descriptor."""
        self._poll = select.poll()  # not a selector, whose own steps cost as much as a small call
        self._poll.register(listener, select.POLLIN)
        self._own_calls: dict[str, Callable[..., Any]] = {
            "hello": self._hello,
            "add_arena": self._add_arena,
            "arena": self._arena,
        }

    def serve(self) -> None:
        """Until standard input ends, which the process that opened the transport holds."""
        self._poll.register(STDIN, select.POLLIN)
        while True:
            for descriptor, events in self._poll.poll(self._patience() if self._parked else None):
                connection = self._connections.get(descriptor)
                if connection is not None:
                    self._attend(connection, events)
                elif descriptor == STDIN:
                    return
                elif descriptor == self._listener.fileno():
                    self._accept()
            if self._parked:
                self._resume()

    def _note_change(self) -> None:
        self._is_changed = True

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            if error.errno in NO_ROOM:  # whoever waits has a deadline; the ends that are there must go on
                self._poll.unregister(self._listener)
                self._is_full = True
            return
        accepted.setblocking(False)
        self._connections[accepted.fileno()] = Connection(accepted)
        self._poll.register(accepted, select.POLLIN)

    def _attend(self, connection: Connection, events: int) -> None:
        try:
            if events & select.POLLOUT:
                self._flush(connection)
            if events & ~select.POLLOUT:
                self._receive(connection)
        except OSError:  # the other side is gone
            self._disconnect(connection)
        if self._is_full:  # that may have made room
            self._poll.register(self._listener, select.POLLIN)
            self._is_full = False

    def _receive(self, connection: Connection) -> None:
        if connection.brings_files:
            data, descriptors = receive(connection.socket)
            connection.descriptors += descriptors
        else:
            data = connection.socket.recv(CHUNK)
        if not data:
            self._disconnect(connection)
            return
        connection.unheard = NOTHING
        try:
            calls = [(method, done, arguments) for method, done, *arguments in connection.messages.feed(data)]
        except (ValueError, TypeError):  # not one of ours
            self._disconnect(connection)
            return
        for method, done, arguments in calls:
            if done:
                connection.end.unpin(done)
            self._call(connection, method, arguments)

    def _disconnect(self, connection: Connection) -> None:
        self._poll.unregister(connection.socket)
        del self._connections[connection.socket.fileno()]
        connection.socket.close()
        self._parked = [parked for parked in self._parked if parked.connection is not connection]
        end, (answer, freed) = connection.end, connection.unheard
        end.unpin([answer])
        end.freed += freed
        end.connections -= 1
        if end.connections == 0:
            end.leave()
            self._ends = {key: other for key, other in self._ends.items() if other is not end}

    def _call(self, connection: Connection, method: str, arguments: list[Any]) -> None:
        try:
            if method in self._calls:
                result = self._calls[method](connection.end, *arguments)
            elif method in self._own_calls:
                result = self._own_calls[method](connection, *arguments)
            else:
                raise TransportError(f"unknown call {method!r}")
        except Exception as error:  # told to the caller; whatever it was, other ends must not lose their server
            self._send(connection, error_state(error), None)
        else:
            if type(result) is GeneratorType:
                self._advance(connection, result)
            else:
                self._send(connection, None, result)

    def _advance(self, connection: Connection, work: Waiting) -> None:
        """Goes on with a call that may wait: sends its result, or parks it."""
        try:
            self._parked.append(Parked(connection, work, next(work)))
        except StopIteration as stop:
            self._send(connection, None, stop.value)
        except Exception as error:  # as above
            self._send(connection, error_state(error), None)

    def _send(self, connection: Connection, error: Any, result: Any) -> None:
        end = connection.end
        freed, end.freed = end.freed, []
        unused, end.unused = end.unused, []
        pinned, end.pinned = end.pinned, 0
        connection.unheard = (pinned, freed)
        connection.outgoing += encoded([error, result, freed, unused])
        self._flush(connection)

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
                    self._advance(parked.connection, parked.work)
                except OSError:
                    self._disconnect(parked.connection)

    def _patience(self) -> float:
        """Milliseconds, rounded up, until the first parked call has to go on."""
        return math.ceil(max(0.0, min([parked.until for parked in self._parked]) - time.monotonic()) * 1e3)

    def _flush(self, connection: Connection) -> None:
        try:
            if connection.file_of is None:
                sent = connection.socket.send(connection.outgoing)
            else:
                sent = socket.send_fds(connection.socket, [connection.outgoing], [connection.file_of.descriptor])
                connection.file_of = None
        except BlockingIOError:
            sent = 0
        connection.outgoing = connection.outgoing[sent:]
        if bool(connection.outgoing) != connection.is_slow:
            connection.is_slow = not connection.is_slow
            self._poll.modify(connection.socket, select.POLLIN | (select.POLLOUT if connection.is_slow else 0))

    # Calls that concern the connection.

    def _hello(self, connection: Connection, end: str, brings_files: bool) -> list[Any]:
        """The first call on each connection says which process it is of, and whether files will come on it. Answers
        which server this is, and what is declared.
        """
        connection.brings_files = brings_files
        connection.end = self._ends.setdefault(end, End())
        connection.end.connections += 1
        return [self._name, self._declared]

    def _add_arena(self, connection: Connection, nbytes: int) -> int:
        """The message brings the file."""
        if not connection.descriptors:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            raise TransportError(f"the transport's server can open no further file; its limit is {limit}")
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
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each arena and each connection is an open file
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

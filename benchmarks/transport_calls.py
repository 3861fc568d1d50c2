"""The least that an index costs which is in a server: what is put, taken and acknowledged is a call each."""

import selectors
import socket
import struct
from collections import deque
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

LONGEST = 1 << 16
"""Bytes of a message."""

START_SECONDS = 60.0
ANSWER_SECONDS = 60
"""In which a call is answered, or its side ends with an error."""

PUT, TAKE, ACKNOWLEDGE = b"p", b"t", b"a"


class Line:
    """A side's connection to the server, for one call at a time.

    Args:
        path: Of the server's socket.
    """

    def __init__(self, path: Path) -> None:
        self._socket = _socket()
        # In the kernel: a timeout of Python's own would make twice as many calls of the system.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", ANSWER_SECONDS, 0))
        self._socket.connect(str(path))

    def put(self, batch: bytes) -> None:
        """Returns when the server knows of a batch."""
        self._ask(PUT + batch)

    def take(self) -> bytes:
        """The oldest batch that was not taken, once there is one."""
        return self._ask(TAKE)

    def acknowledge(self) -> None:
        """Returns when the server knows that a batch was used."""
        self._ask(ACKNOWLEDGE)

    def _ask(self, message: bytes) -> bytes:
        self._socket.send(message)
        if not (answer := self._socket.recv(LONGEST)):
            raise ConnectionResetError("the server has ended")
        return answer


def start_server(path: Path) -> BaseProcess:
    """A process that answers calls at a socket: it keeps what was put, and checks, counts and forgets nothing."""
    context = get_context("spawn")
    listens = context.Event()
    server = context.Process(target=_serve, args=(path, listens), daemon=True)
    server.start()
    if not listens.wait(START_SECONDS):
        raise TimeoutError("the server does not listen")
    return server


def _serve(path: Path, listens: Any) -> None:
    listener = _socket()
    listener.bind(str(path))
    listener.listen()
    listens.set()
    batches: deque[bytes] = deque()
    waiting: deque[socket.socket] = deque()
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    selector.register(listener.accept()[0], selectors.EVENT_READ)
                elif not _answer(key.fileobj, batches, waiting):
                    selector.unregister(key.fileobj)
            while batches and waiting:
                waiting.popleft().send(batches.popleft())


def _answer(line: Any, batches: deque[bytes], waiting: deque[socket.socket]) -> bool:
    """Answers a call, or notes that it waits; whether there was one, and the connection has not ended."""
    message = line.recv(LONGEST)
    if message == TAKE:
        waiting.append(line)
    elif message:
        if message != ACKNOWLEDGE:
            batches.append(message[1:])
        line.send(ACKNOWLEDGE)
    return bool(message)


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

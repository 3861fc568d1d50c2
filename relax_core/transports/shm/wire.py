"""Messages between the ends of a transport and its server: msgpack over a Unix socket, each after its length."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from relax_core.api.errors import DeadlineExceeded, EndOfStream, LeaseExpired, RelaxError, TransportError

SOCKET = "transport.sock"
"""Name of the server's socket in the folder of the run."""

LONGEST_ADDRESS = 100
"""Bytes; Linux takes 107, others 103."""

CHUNK = 1 << 16
"""Bytes received at once."""

_LENGTH = struct.Struct("<I")
_DESCRIPTOR = struct.Struct("i")
_SPACE = socket.CMSG_SPACE(_DESCRIPTOR.size)
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_ERRORS = {error.__name__: error for error in (TransportError, EndOfStream, LeaseExpired, DeadlineExceeded)}


def encoded(message: Any) -> bytes:
    """A message with its length before it.

    Raises:
        TypeError: Something in it has no form in msgpack.
        ValueError: Something is too long.
        OverflowError: An integer has more than 64 bits.
    """
    body: bytes = msgpack.packb(message, default=_plain)
    return _LENGTH.pack(len(body)) + body


def _plain(value: Any) -> Any:
    """Scalars of numpy are as good as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} {value!r} has no form in msgpack")


class Messages:
    """Messages out of the bytes of one direction of a connection, however these are cut."""

    def __init__(self) -> None:
        self._bytes = b""

    def feed(self, data: bytes) -> list[Any]:
        """The messages that are whole by now."""
        if not self._bytes and len(data) == _LENGTH.size + int.from_bytes(data[: _LENGTH.size], "little"):
            return [msgpack.unpackb(data[_LENGTH.size :])]  # as nearly always
        data = self._bytes + data
        found, start, size = [], 0, len(data)
        while size - start >= _LENGTH.size:
            body = start + _LENGTH.size
            end = body + _LENGTH.unpack_from(data, start)[0]
            if end > size:
                break
            found.append(msgpack.unpackb(data[body:end]))
            start = end
        self._bytes = data[start:]
        return found


def error_state(error: Exception) -> tuple[str, str]:
    """An error as the other side raises it; one that is not Relax's own has its type in front."""
    name = type(error).__name__
    return (name, str(error)) if name in _ERRORS else (TransportError.__name__, f"{name}: {error}")


def error_of(state: tuple[str, str]) -> RelaxError:
    """The error that :func:`error_state` was given."""
    name, text = state
    return _ERRORS[name](text)


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """What has come: bytes, none at the end of the connection, and descriptors of files."""
    data, ancillary, _, _ = connection.recvmsg(CHUNK, _SPACE, _CLOSE_ON_EXEC)
    return data, [_DESCRIPTOR.unpack_from(content)[0] for _, _, content in ancillary]


@contextmanager
def address(path: Path) -> Iterator[str]:
    """A name of a socket that is short enough to be its address, as long as the block runs."""
    if len(os.fsencode(path)) <= LONGEST_ADDRESS:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)

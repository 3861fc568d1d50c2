"""What an engine's process and the process that started it tell each other, and the socket they do it over.

Messages are pickled. That is safe here and nowhere else: the socket has no address and no name, and only the two
processes that it was made for hold its ends.
"""

import asyncio
import contextlib
import io
import pickle
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from relax_core.api import errors
from relax_core.api.context import Context
from relax_core.api.errors import RelaxError
from relax_core.api.weights import SharedBuckets
from relax_core.config.selection import Selected

if TYPE_CHECKING:
    from relax_core.weights.shared_memory import PlacedBucket

    Sent = SharedBuckets | Sequence[PlacedBucket]
    """Where a publication is: where its carrier has put it, or where it lies in the memory of the two processes."""
else:
    Sent = object

LENGTH_BYTES = 8


@dataclass(frozen=True)
class Setup:
    """The engine to build, with a context whose counter is not that of the run, and torch's ``threads`` (0: as is)."""

    selected: Selected
    context: Context
    threads: int


@dataclass(frozen=True)
class Call:
    """A call of a method of the engine. Its arguments are pickled apart: if they cannot be read, only the call fails.

    Args:
        number: Names the answer; unique.
        method: Of :class:`relax_core.api.engine.Engine`.
        pickled: The arguments.
    """

    number: int
    method: str
    pickled: bytes

    @classmethod
    def of(cls, number: int, method: str, *arguments: Any) -> Self:
        """Raises what ``pickle`` does when an argument cannot be sent."""
        return cls(number, method, pickle.dumps(arguments, pickle.HIGHEST_PROTOCOL))

    def arguments(self) -> tuple[Any, ...]:
        """Raises what importing the classes of the arguments does."""
        arguments: tuple[Any, ...] = pickle.loads(self.pickled)
        return arguments


@dataclass(frozen=True)
class Cancel:
    """The caller of a call has left; there will be no answer."""

    number: int


@dataclass(frozen=True)
class Medium:
    """A medium, packed, that requests will name by its key; see :class:`relax_core.api.media.Encoded`."""

    key: str
    packed: bytes


@dataclass(frozen=True)
class Forget:
    """No later request names this medium, until it is sent again."""

    key: str


@dataclass(frozen=True)
class Failure:
    """An exception as a class of ``relax_core.api.errors``, by name, and its text."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """The nearest of the project's own classes; an exception that has none is named in the text."""
        for kind in type(error).__mro__:
            if issubclass(kind, RelaxError) and getattr(errors, kind.__name__, None) is kind:
                return cls(kind.__name__, str(error))
        return cls(RelaxError.__name__, f"the engine raised {type(error).__name__}: {error}")

    def error(self) -> RelaxError:
        """The exception, to be raised."""
        error: RelaxError = getattr(errors, self.kind)(self.text)
        return error


@dataclass(frozen=True)
class Answer:
    """What became of the call of this number: a value or a :class:`Failure`; and the engine's ``generated_tokens``."""

    number: int
    outcome: Any
    generated_tokens: int


@dataclass(frozen=True)
class Progress:
    """The engine's ``generated_tokens`` now."""

    generated_tokens: int


@dataclass(frozen=True)
class Count:
    """To be added to a counter of the run."""

    name: str
    amount: int


class Channel:
    """One end of a socket pair. What is sent in one turn of the sender's event loop arrives together.

    So it does not depend on timing which requests an engine finds when it begins its next step.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._outbox: list[bytes] = []

    @classmethod
    async def open(cls, end: socket.socket) -> Self:
        """On the running event loop."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, message: object) -> None:
        """On the event loop. Raises what ``pickle`` does when the message cannot be sent; then nothing is."""
        pickled = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(pickled)

    async def receive(self) -> Sequence[Any]:
        """The next messages that were sent together.

        Raises:
            EOFError: The other end is closed.
        """
        try:
            length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES))
            together = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise EOFError("the other end is closed") from error
        stream = io.BytesIO(together)
        messages = []
        while stream.tell() < length:
            messages.append(pickle.load(stream))
        return messages

    async def close(self) -> None:
        """Sends what is left, and closes this end."""
        self._flush()
        self._writer.close()
        with contextlib.suppress(ConnectionError):  # the other end was faster
            await self._writer.wait_closed()

    def _flush(self) -> None:
        if self._outbox:
            together = b"".join(self._outbox)
            self._outbox.clear()
            self._writer.write(len(together).to_bytes(LENGTH_BYTES) + together)

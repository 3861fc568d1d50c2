"""The process of an engine as its parent sees it: started, called, ended."""

import asyncio
import itertools
import json
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from typing import Any, Self

from relax_core.api.errors import DeadlineExceeded, RelaxError
from relax_core.engines.process.protocol import Answer, Call, Cancel, Channel, Count, Failure, Forget, Medium, Progress

logger = logging.getLogger(__name__)

CALL_SECONDS = 600.0
"""Longest wait for an answer; callers set shorter limits. A generation has only the limit that its caller sets."""

CLOSE_SECONDS = 10.0
"""How long the process may take to leave by itself, and to be gone once it is killed."""

GRACE_SECONDS = 0.5
"""How long after the end of the process its last words are waited for, or after these its end."""

STDERR = 2

CHILD = (
    "import json, signal, sys; "
    "[signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)]; "
    "sys.path[:] = json.loads(sys.argv[1]); "
    "from relax_core.engines.process.child import main; main(*map(int, sys.argv[2:]))"
)
"""What the process runs. What a terminal or a scheduler sends to all processes of a run is for the parent, which may
still need this one to end where it can be continued. Modules are found where the parent finds them. The spawn of
``multiprocessing`` would import the parent's main module again, and run an unguarded script twice.
"""


class ChildProcess:
    """A running process and the calls that it has not answered yet; made by :meth:`start`.

    Args:
        process: What runs :func:`relax_core.engines.process.child.main`.
        channel: To it.
        note: Is given what it tells beside answers, and every answer.
    """

    def __init__(self, process: Process, channel: Channel, note: Callable[[Answer | Progress | Count], None]) -> None:
        self._process = process
        self._channel = channel
        self._note = note
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._life = asyncio.create_task(self._live(), name=str(self))
        self.ended = ""
        """Why there are no answers any more."""

    @classmethod
    async def start(cls, weights: int, note: Callable[[Answer | Progress | Count], None]) -> Self:
        """Starts the process, which inherits the descriptor of the file in which publications arrive."""
        ours, theirs = socket.socketpair()
        with theirs:
            channel = await Channel.open(ours)
            numbers = [str(number) for number in (theirs.fileno(), weights, os.getpid())]
            command = [sys.executable, "-c", CHILD, json.dumps(sys.path), *numbers]
            # what the engine prints goes to stderr: stdout is the command's own
            process = await asyncio.create_subprocess_exec(
                *command, stdin=DEVNULL, stdout=STDERR, pass_fds=(theirs.fileno(), weights)
            )
        return cls(process, channel, note)

    def __str__(self) -> str:
        return f"the engine process (pid {self._process.pid})"

    async def call(self, method: str, *arguments: Any) -> Any:
        """The result of a method of the engine.

        Raises:
            RelaxError: What the engine raised, or why the process does not answer.
        """
        if self.ended:
            raise RelaxError(self.ended)
        return await self._answer(method, *arguments)

    def tell(self, message: Medium | Forget) -> None:
        """Sends what has no answer, before all later calls; nothing to a process that has ended."""
        if not self.ended:
            self._channel.send(message)

    async def ask(self, method: str, *arguments: Any, seconds: float = CALL_SECONDS) -> Any:
        """As :meth:`call`, by a deadline; :class:`DeadlineExceeded` after it."""
        try:
            async with asyncio.timeout(seconds):
                return await self.call(method, *arguments)
        except TimeoutError:
            raise DeadlineExceeded(f"{self} did not answer {method!r} within {seconds:g} s") from None

    async def close(self) -> None:
        """Lets the engine close and the process leave; ends it when it does not."""
        if self.ended:
            await self.end(self.ended)
            return
        self.ended = "the engine process is closed"
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._answer("close")
                await self._process.wait()
        except TimeoutError:
            logger.warning("%s did not leave within %g s and is ended", self, CLOSE_SECONDS)
        except RelaxError as error:
            if not self._life.done():
                raise
            logger.warning("%s", error)  # it died before it could be closed
        finally:
            await self.end(self.ended)

    async def end(self, reason: str) -> None:
        """Ends the process, if it has not left by itself."""
        self.ended = self.ended or reason
        if self._process.returncode is None:
            self._process.kill()
            await asyncio.wait([asyncio.create_task(self._process.wait())], timeout=CLOSE_SECONDS)
        await self._life
        await self._channel.close()

    async def _live(self) -> None:
        """Takes what the process sends. When either ends, every call that has no answer fails."""
        receiving = asyncio.create_task(self._receive())
        works = {receiving, asyncio.create_task(self._process.wait())}
        await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(works, timeout=GRACE_SECONDS)
        for work in works:
            work.cancel()
        await asyncio.wait(works)
        reason = self._reason(receiving)
        self.ended = self.ended or reason
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(RelaxError(reason))

    async def _receive(self) -> None:
        while True:
            for message in await self._channel.receive():
                self._note(message)
                if isinstance(message, Answer) and message.number in self._answers:
                    _settle(self._answers[message.number], message.outcome)

    def _reason(self, receiving: asyncio.Task[None]) -> str:
        code = self._process.returncode
        if code is not None and code < 0:
            hint = "; was there too little memory?" if -code == signal.SIGKILL else ""
            return f"{self} was ended by signal {-code} ({signal.strsignal(-code)}){hint}"
        if code is not None:
            return f"{self} ended with exit code {code}"
        error = None if receiving.cancelled() else receiving.exception()
        return f"{self} does not answer any more: {error}"

    async def _answer(self, method: str, *arguments: Any) -> Any:
        call = Call.of(next(self._numbers), method, *arguments)
        answer = self._answers[call.number] = asyncio.get_running_loop().create_future()
        self._channel.send(call)
        try:
            return await answer
        except asyncio.CancelledError:
            self._channel.send(Cancel(call.number))
            raise
        finally:
            del self._answers[call.number]


def _settle(answer: asyncio.Future[Any], outcome: Any) -> None:
    if answer.done():
        return
    if isinstance(outcome, Failure):
        answer.set_exception(outcome.error())
    else:
        answer.set_result(outcome)

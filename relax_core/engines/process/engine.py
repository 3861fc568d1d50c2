"""The caller's side of an engine in a process of its own."""

import asyncio
import itertools
import json
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from relax_core.api.context import Context
from relax_core.api.engine import Engine, GenerateRequest, Generation, Health
from relax_core.api.errors import DeadlineExceeded, RelaxError
from relax_core.api.weights import Acknowledgement, Bucket, Manifest
from relax_core.config.selection import Selected
from relax_core.engines.process.protocol import Answer, Call, Cancel, Channel, Count, Failure, Setup
from relax_core.engines.process.shared_weights import SharedWeights, anonymous_file

logger = logging.getLogger(__name__)

CALL_SECONDS = 600.0
"""Longest wait for an answer; callers set shorter limits. A generation has only the limit that its caller sets."""

CLOSE_SECONDS = 10.0
"""How long the process may take to leave by itself, and again when it is told to by a signal."""

GRACE_SECONDS = 0.5
"""How long after the end of the process its last words are waited for, or after these its end."""

STDERR = 2

CHILD = (
    "import json, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.path[:] = json.loads(sys.argv[1]); "
    "from relax_core.engines.process.child import main; main(*map(int, sys.argv[2:]))"
)
"""What the process runs. An interrupt on the terminal is for its parent alone; modules are found where the parent finds
them. The spawn of ``multiprocessing`` would import the parent's main module again, and run an unguarded script twice.
"""


class ProcessEngine(Engine):
    """Runs any engine in a process of its own, which does not outlive this one, however this one ends.

    Calls are answered concurrently. Those made in one turn of the event loop enter the engine before its next step.

    Args:
        selected: The engine.
        context: Its context.
        start_timeout: Seconds for the process to start and to load the model.
        threads: Intra-op threads of torch in the process; 0 leaves torch's default.
    """

    def __init__(self, selected: Selected, context: Context, start_timeout: float = 600.0, threads: int = 0) -> None:
        self._setup = Setup(selected, replace(context, count=Context.count), threads)
        self._count = context.count
        self._start_timeout = start_timeout
        self._process: Process | None = None
        self._life: asyncio.Task[None] | None = None
        self._channel: Channel | None = None
        self._shared: SharedWeights | None = None
        self._updating = asyncio.Lock()
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._version = 0
        self._ended = "the engine process was not started"
        """Why there are no answers; empty while there are."""

    async def start(self) -> None:
        """Starts the process and in it the engine.

        Raises:
            DeadlineExceeded: It took longer than ``start_timeout``.
            RelaxError: What the engine raised; see :class:`relax_core.engines.process.protocol.Failure`.
        """
        try:
            await self._spawn()
            self.capabilities = await self._ask("start", self._setup, seconds=self._start_timeout)
        except BaseException as error:
            self._ended = self._ended or f"the engine process did not start: {error}"
            await self._leave()
            raise

    async def generate(self, request: GenerateRequest) -> Generation:
        """See :meth:`Engine.generate`."""
        generation: Generation = await self._call("generate", request)
        return generation

    async def abort(self, keys: Sequence[str] | None = None) -> None:
        """See :meth:`Engine.abort`."""
        await self._ask("abort", keys)

    async def pause(self) -> None:
        """See :meth:`Engine.pause`."""
        await self._ask("pause")

    async def resume(self) -> None:
        """See :meth:`Engine.resume`."""
        await self._ask("resume")

    async def update(self, manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        """See :meth:`Engine.update`. The tensors are copied once, into memory that both processes see."""
        taken = asyncio.create_task(self._update(manifest, buckets))
        try:
            async with asyncio.timeout(CALL_SECONDS):
                # a caller that leaves must not give the memory free while the engine reads it
                return await asyncio.shield(taken)
        except TimeoutError:
            raise self._late("update", CALL_SECONDS) from None

    async def release(self, what: frozenset[str] = frozenset({"weights", "cache"})) -> None:
        """See :meth:`Engine.release`."""
        await self._ask("release", what)

    async def restore(self) -> None:
        """See :meth:`Engine.restore`."""
        await self._ask("restore")

    async def health(self) -> Health:
        """That of the engine; unhealthy when its process cannot be asked."""
        try:
            health: Health = await self._ask("health")
        except RelaxError as error:
            return Health(False, 0, 0, self._version, str(error))
        return health

    async def close(self) -> None:
        """Closes the engine and ends the process; requests in flight fail with :class:`RelaxError`."""
        was_open, self._ended = not self._ended, self._ended or "the engine process is closed"
        try:
            if was_open and self._process is not None:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._answer("close")
                    await self._process.wait()
        except TimeoutError:
            logger.warning("%s did not leave within %g s and is ended", self, CLOSE_SECONDS)
        except RelaxError as error:
            if self._life is None or not self._life.done():
                raise
            logger.warning("%s", error)  # it died before it could be closed
        finally:
            await self._leave()

    def __str__(self) -> str:
        return f"the engine process (pid {self._process.pid if self._process else 'none'})"

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._shared = SharedWeights(anonymous_file())
            passed = (theirs.fileno(), self._shared.descriptor)
            numbers = [str(number) for number in (*passed, os.getpid())]
            command = [sys.executable, "-c", CHILD, json.dumps(sys.path), *numbers]
            # what the engine prints goes to stderr: stdout is the command's own
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=DEVNULL, stdout=STDERR, pass_fds=passed
            )
        self._channel = await Channel.open(ours)
        self._ended = ""
        self._life = asyncio.create_task(self._live(self._process, self._channel), name=str(self))

    async def _live(self, process: Process, channel: Channel) -> None:
        """Takes what the process sends. When either ends, every call that has no answer fails."""
        receiving = asyncio.create_task(self._receive(channel))
        works = {receiving, asyncio.create_task(process.wait())}
        await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(works, timeout=GRACE_SECONDS)
        for work in works:
            work.cancel()
        await asyncio.wait(works)
        reason = self._reason(process, receiving)
        self._ended = self._ended or reason
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(RelaxError(reason))

    async def _receive(self, channel: Channel) -> None:
        while True:
            for message in await channel.receive():
                if isinstance(message, Count):
                    self._count(message.name, message.amount)
                    continue
                self.generated_tokens = message.generated_tokens
                if isinstance(message, Answer) and message.number in self._answers:
                    _settle(self._answers[message.number], message.outcome)

    def _reason(self, process: Process, receiving: asyncio.Task[None]) -> str:
        code = process.returncode
        if code is not None and code < 0:
            hint = "; was there too little memory?" if -code == signal.SIGKILL else ""
            return f"{self} was ended by signal {-code} ({signal.strsignal(-code)}){hint}"
        if code is not None:
            return f"{self} ended with exit code {code}"
        error = None if receiving.cancelled() else receiving.exception()
        return f"{self} does not answer any more: {error}"

    async def _call(self, method: str, *arguments: Any) -> Any:
        self._check()
        return await self._answer(method, *arguments)

    async def _ask(self, method: str, *arguments: Any, seconds: float = CALL_SECONDS) -> Any:
        """As :meth:`_call`, by a deadline."""
        try:
            async with asyncio.timeout(seconds):
                return await self._call(method, *arguments)
        except TimeoutError:
            raise self._late(method, seconds) from None

    async def _answer(self, method: str, *arguments: Any) -> Any:
        assert self._channel is not None
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

    async def _update(self, manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        async with self._updating:
            self._check()
            assert self._shared is not None
            written = await asyncio.to_thread(self._shared.write, buckets)
            acknowledgement: Acknowledgement = await self._call("update", manifest, written)
        self._version = acknowledgement.version
        return acknowledgement

    def _check(self) -> None:
        if self._ended:
            raise RelaxError(self._ended)

    def _late(self, method: str, seconds: float) -> DeadlineExceeded:
        return DeadlineExceeded(f"{self} did not answer {method!r} within {seconds:g} s")

    async def _leave(self) -> None:
        """Ends the process if it has not left by itself, and gives back what was shared with it."""
        if self._process is not None:
            for end in (self._process.terminate, self._process.kill):
                if self._process.returncode is None:
                    end()
                    await asyncio.wait([asyncio.create_task(self._process.wait())], timeout=CLOSE_SECONDS)
        if self._life is not None and self._channel is not None:
            await self._life
            await self._channel.close()
        async with self._updating:
            if self._shared is not None:
                self._shared.close()


def _settle(answer: asyncio.Future[Any], outcome: Any) -> None:
    if answer.done():
        return
    if isinstance(outcome, Failure):
        answer.set_exception(outcome.error())
    else:
        answer.set_result(outcome)

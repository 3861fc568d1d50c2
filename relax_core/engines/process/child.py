"""The process that holds the engine: builds it, answers calls, many at a time, and leaves when its parent is gone."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import select
import socket
import sys
import threading
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from relax_core.api.engine import Capability, Engine
from relax_core.api.errors import RelaxError
from relax_core.api.media import Encoded
from relax_core.api.weights import Bucket, SharedBuckets
from relax_core.engines.process.protocol import (
    Answer,
    Call,
    Cancel,
    Channel,
    Count,
    Failure,
    Forget,
    Medium,
    Progress,
    Sent,
    Setup,
)

if TYPE_CHECKING:
    from relax_core.weights.shared_memory import SharedWeights

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 0.05
"""Longest time for which tokens are generated and not told."""

WATCH_SECONDS = 1.0
"""How often to look whether the parent lives, should another process have inherited its end of the socket."""

FORWARDED = frozenset({"abort", "pause", "resume", "release", "restore", "health"})
"""Methods of the engine whose arguments and results travel as they are; media of requests go before them."""


def main(end: int, weights: int, parent: int) -> None:
    """The whole life of the process.

    Args:
        end: Descriptor of this process's end of the socket.
        weights: Descriptor of the file in which publications arrive.
        parent: Process id of whoever started this one.
    """
    closed = threading.Event()
    atexit.register(_leave, closed)  # the first to be registered is the last to be called
    threading.Thread(target=_leave_with_parent, args=(end, parent), daemon=True).start()
    asyncio.run(_serve(socket.socket(fileno=end), weights))
    closed.set()


def _leave(closed: threading.Event) -> None:
    """Leaves when Python has ended all that it knows of: in vLLM's process some library's destructor never returns."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if closed.is_set() else 1)


def _leave_with_parent(end: int, parent: int) -> None:
    """Also while the event loop is held up, by loading a model for instance, and would not see the socket close."""
    hangup = select.poll()
    hangup.register(end, 0)
    while not hangup.poll(WATCH_SECONDS * 1000) and os.getppid() == parent:
        pass
    os._exit(1)


async def _serve(end: socket.socket, weights: int) -> None:
    channel = await Channel.open(end)
    await ServedEngine(channel, weights).run()
    await channel.close()


class ServedEngine:
    """The engine, and the calls that are being answered.

    Args:
        channel: To the parent.
        weights: Descriptor of the file in which publications arrive.
    """

    def __init__(self, channel: Channel, weights: int) -> None:
        self._channel = channel
        self._weights = weights
        self._shared: SharedWeights | None = None
        self._loop = asyncio.get_running_loop()
        self._engine: Engine | None = None
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._media: dict[str, Encoded] = {}
        self._closed = asyncio.Event()

    async def run(self) -> None:
        """Answers until the engine is closed, or the parent is gone."""
        works = [asyncio.create_task(work) for work in (self._receive(), self._tell_progress(), self._closed.wait())]
        done, pending = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        for work in pending:
            work.cancel()
        for work in done:
            work.result()

    async def _receive(self) -> None:
        """All calls that arrive together begin in the same turn of the event loop."""
        while True:
            try:
                messages = await self._channel.receive()
            except EOFError:
                return
            for message in messages:
                if isinstance(message, Cancel):
                    if message.number in self._calls:
                        self._calls[message.number].cancel()
                elif isinstance(message, Medium):
                    self._media[message.key] = Encoded.unpack(message.packed)
                elif isinstance(message, Forget):
                    self._media.pop(message.key, None)
                else:
                    task = self._calls[message.number] = asyncio.create_task(self._answer(message))
                    task.add_done_callback(partial(self._forget, message.number))

    def _forget(self, number: int, task: asyncio.Task[None]) -> None:
        del self._calls[number]

    async def _tell_progress(self) -> None:
        told = 0
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            if self._generated_tokens != told:
                told = self._generated_tokens
                self._channel.send(Progress(told))

    async def _answer(self, call: Call) -> None:
        try:
            self._channel.send(Answer(call.number, await self._outcome(call), self._generated_tokens))
        except Exception as error:
            if not isinstance(error, RelaxError):
                logger.exception("the engine failed to %s", call.method)
            self._channel.send(Answer(call.number, Failure.of(error), self._generated_tokens))

    async def _outcome(self, call: Call) -> Any:
        arguments = call.arguments()
        if call.method == "start":
            return await self._start(*arguments)
        if call.method == "close":
            return await self._close()
        if self._engine is None:
            raise RelaxError("the engine is still loading")
        if call.method == "generate":
            request, keys = arguments
            return await self._engine.generate(replace(request, media=tuple(self._media[key] for key in keys)))
        if call.method in ("receive", "update"):
            manifest, sent = arguments
            return await getattr(self._engine, call.method)(manifest, self._buckets(sent))
        assert call.method in FORWARDED, call.method
        return await getattr(self._engine, call.method)(*arguments)

    async def _start(self, setup: Setup) -> frozenset[Capability]:
        from relax_core.models.loading import loading

        if setup.threads:
            import torch

            torch.set_num_threads(setup.threads)
        engine: Engine = setup.selected.build(replace(setup.context, count=self._count))
        model = setup.context.model
        with loading(model.path) if model is not None else nullcontext():
            await engine.start()
        self._engine = engine
        return engine.capabilities

    def _buckets(self, sent: Sent) -> Iterable[Bucket]:
        from relax_core.weights.shared_memory import SharedWeights

        if isinstance(sent, SharedBuckets):
            return sent
        self._shared = self._shared or SharedWeights(self._weights)
        return self._shared.read(sent)

    async def _close(self) -> None:
        """Returns when every other call has its answer."""
        try:
            if self._engine is not None:
                await self._engine.close()
            others = set(self._calls.values()) - {asyncio.current_task()}
            if others:
                await asyncio.wait(others)
        finally:
            self._closed.set()

    @property
    def _generated_tokens(self) -> int:
        return 0 if self._engine is None else self._engine.generated_tokens

    def _count(self, name: str, amount: int = 1) -> None:
        """On any thread of the engine."""
        self._loop.call_soon_threadsafe(self._channel.send, Count(name, amount))

"""Whose turn it is with a model: a step of decoding, or a call for which decoding must stand still."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from relax_core.api.errors import RelaxError

Result = TypeVar("Result")
RELEASABLE = frozenset({"weights", "cache"})


class Turns:
    """One thread for everything that touches the model, one turn at a time, and what keeps tokens from being computed.

    Args:
        name: The engine's, for messages: "the torch engine".
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused = False
        self.released: frozenset[str] = frozenset()
        self.weightless = False
        """Whether the weights are of no version, until all have been published anew."""
        self.ended = ""
        """Why nothing will be served any more."""
        self._halts = 0
        self._turn = asyncio.Lock()
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def on_thread(self, function: Callable[[], Result]) -> Result:
        """Calls a function where the model may be touched; it runs to its end even if the caller stops waiting."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def take(self, wanted: Callable[[], object], step: Callable[[], Awaitable[None]]) -> None:
        """Makes one step after the other, as long as one is wanted and nothing blocks it; returns when it has ended."""
        while not self.ended:
            if self.blocked or not wanted():
                self._wake.clear()
                await self._wake.wait()
                continue
            async with self._turn:
                if not self.blocked:
                    await step()

    def wake(self) -> None:
        """Something changed that a step may wait for."""
        self._wake.set()

    @property
    def blocked(self) -> bool:
        """Whether no token may be computed now; a step that can end early asks for it."""
        return bool(self.ended or self.paused or self._halts or self.released or self.weightless)

    @property
    def has_weights(self) -> bool:
        """Whether the model's weights are those of a version."""
        return not self.weightless and "weights" not in self.released

    @contextlib.asynccontextmanager
    async def halted(self) -> AsyncIterator[None]:
        """Keeps steps from being made; entered when the present one has ended."""
        self._halts += 1
        try:
            async with self._turn:
                yield
        finally:
            self._halts -= 1
            self.wake()

    async def pause(self) -> None:
        """Returns when no token is being computed."""
        self.paused = True
        async with self.halted():
            pass

    async def resume(self) -> None:
        """Goes on after ``pause``."""
        self.paused = False
        self.wake()

    @contextlib.asynccontextmanager
    async def releasing(self, what: frozenset[str]) -> AsyncIterator[None]:
        """As :meth:`halted`, and no step is made afterwards either until :meth:`restoring`.

        Raises:
            RelaxError: Neither weights nor cache are to be released.
        """
        if unknown := what - RELEASABLE:
            raise RelaxError(f"release: unknown {sorted(unknown)}; {self.name} releases 'weights' and 'cache'")
        self.released |= what
        async with self.halted():
            self.weightless |= "weights" in what
            yield

    @contextlib.asynccontextmanager
    async def restoring(self) -> AsyncIterator[None]:
        """As :meth:`halted`; afterwards nothing is released any more, but released weights are of no version."""
        async with self.halted():
            yield
            self.released = frozenset()

    @contextlib.contextmanager
    def replacing(self) -> Iterator[None]:
        """Around whatever changes the weights. Requests that come meanwhile wait for it to end; after a failure in the
        middle, the weights are of no version.
        """
        try:
            yield
        except BaseException:
            self.weightless = True
            raise
        self.weightless = False

    def check_open(self) -> None:
        """Raises :class:`RelaxError` when the engine has ended."""
        if self.ended:
            raise RelaxError(self.ended)

    def check_serving(self) -> None:
        """Raises :class:`RelaxError` when the model cannot answer a request."""
        if self.released:
            raise RelaxError(f"{self.name} has released its {' and '.join(sorted(self.released))}")
        if self.weightless:
            raise RelaxError(f"{self.name} has no weights; they must be published anew")

    def end(self, reason: str) -> None:
        """Makes no step any more; the first reason is kept."""
        self.ended = self.ended or reason
        self.wake()

    def shutdown(self) -> None:
        """Ends the thread."""
        self._thread.shutdown()

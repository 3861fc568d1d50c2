"""Ctrl-C: the first ends a stage where it can be continued, the second ends the process at once."""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any


class Interrupt:
    """Runs a stage's work until it is done or the first Ctrl-C.

    Args:
        inside: Whether the work is where it cannot be left: then it is asked for by :attr:`asked`, and ends itself.
    """

    def __init__(self, inside: Callable[[], bool]) -> None:
        self._inside = inside
        self.asked = False

    async def watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Awaits the work; returns early when it was interrupted, which :attr:`asked` says."""
        task = asyncio.ensure_future(work)
        if threading.current_thread() is not threading.main_thread():
            await task
            return
        loop = asyncio.get_running_loop()
        before = signal.getsignal(signal.SIGINT)

        def restore() -> None:
            loop.remove_signal_handler(signal.SIGINT)
            signal.signal(signal.SIGINT, before)

        def interrupt() -> None:
            self.asked = True
            restore()
            if not self._inside():
                task.cancel()

        loop.add_signal_handler(signal.SIGINT, interrupt)
        try:
            await task
        except asyncio.CancelledError:
            if not self.asked or not task.cancelled():
                task.cancel()
                raise
        finally:
            if not self.asked:
                restore()

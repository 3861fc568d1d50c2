"""Ctrl-C, or SIGTERM: the first ends a stage where it can be continued, the second ends the process at once."""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what ``kill`` and cluster schedulers send."""


class Interrupt:
    """Runs a stage's work until it is done or the first of the signals.

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
        before = {number: signal.getsignal(number) for number in SIGNALS}

        def interrupt() -> None:
            self.asked = True
            for number in SIGNALS:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)  # whoever asks again does not want to wait for the work
            if not self._inside():
                task.cancel()

        for number in SIGNALS:
            loop.add_signal_handler(number, interrupt)
        try:
            await task
        except asyncio.CancelledError:
            if not self.asked or not task.cancelled():
                task.cancel()
                raise
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

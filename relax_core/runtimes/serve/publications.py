"""What the leading rank publishes goes on in an event loop beside its work, and is told to the state of the run."""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from typing import Any

from relax_core.api.errors import RelaxError
from relax_core.api.trainer import Published
from relax_core.metrics.timeline import Timeline
from relax_core.runtimes.serve.proxies import StateClient
from relax_core.runtimes.shared_device import Device
from relax_core.weights.publisher import Publisher


class RankPublications:
    """The publisher of a rank whose own thread makes updates. One call at a time.

    Args:
        publisher: Its engines and its carrier are used from the event loop alone.
        trainer: What is published.
        state: Is told what engines have, and what failed while nobody waited.
        timeline: Told when weights were staged and sent.
        timeout: Seconds for one call.
        device: Where engines and trainer have their memory.
    """

    def __init__(
        self,
        publisher: Publisher,
        trainer: Published,
        state: StateClient,
        timeline: Timeline,
        timeout: float,
        device: Device,
    ) -> None:
        self._publisher = publisher
        self._trainer = trainer
        self._state = state
        self._timeline = timeline
        self._timeout = timeout
        self._device = device
        self._device.timeline = timeline
        self._loop = asyncio.new_event_loop()
        self._following: asyncio.Task[None] | None = None
        threading.Thread(target=self._loop.run_forever, name="publications", daemon=True).start()

    @property
    def version(self) -> int:
        """Published last."""
        return self._publisher.version

    def settle(self) -> None:
        """Returns when all engines have what was published last, and tells that once more."""
        self._do(self._settle())

    def publish(self, beside: bool) -> int:
        """Publishes the weights as the next version.

        Args:
            beside: Return as soon as the trainer may go on; otherwise when all engines have the weights.

        Raises:
            WeightSyncError: See :meth:`Publisher.publish`; also of the publication before.
        """
        self._do(self._begin(beside))
        return self._publisher.version

    def take_turn(self) -> None:
        """Returns when the trainer may compute."""
        self._do(self._device.for_trainer())

    def give_turn(self) -> None:
        """Returns when the engines may, with what was published last."""
        self._do(self._device.for_engines())

    def before_update(self) -> None:
        """See :meth:`Publisher.before_update`."""
        self._do(self._publisher.before_update())

    async def _begin(self, beside: bool) -> None:
        with self._timeline.span("weights", "stage"):
            await self._device.hand_over(lambda: self._publisher.begin(self._trainer))
        self._state("staged", self._publisher.version)
        if beside:
            self._following = asyncio.create_task(self._follow())
        else:
            await self._settle()

    async def _settle(self) -> None:
        with self._send():
            await self._publisher.settled()
        self._tell()

    async def _follow(self) -> None:
        with self._send():
            await self._publisher.ended()
        failure = self._publisher.failure
        if failure is None:
            self._tell()
        else:
            # Whoever publishes next would hear of it, but may be waiting for groups that this one holds back.
            self._state("failed", RelaxError(f"version {self._publisher.version} did not reach the engines: {failure}"))

    def _send(self) -> AbstractContextManager[object]:
        return self._timeline.span("weights", "send", version=self._publisher.version)

    def _tell(self) -> None:
        self._state("published", self._publisher.version, dict(self._publisher.metrics))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(self._timeout)

"""The device of a stage's models: with room for all of them, or one that engines and trainer hold in turn."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from relax_core.api.engine import Engine
from relax_core.api.trainer import Published
from relax_core.metrics.timeline import NO_TIMELINE, Timeline
from relax_core.weights.publisher import Publisher

EVERYTHING = frozenset({"weights", "optimizer", "gradients"})


class Released(Published, Protocol):
    """A trainer, or all its ranks together; see :class:`relax_core.api.trainer.Trainer`."""

    def release(self, what: frozenset[str]) -> None:
        """Moves things off the device."""

    def restore(self) -> None:
        """Takes back what was released."""


class Device:
    """Engines and trainer have a device each, or one that has room for both: nobody waits for a turn."""

    timeline: Timeline = NO_TIMELINE
    """Told when the device changed hands."""

    async def for_trainer(self) -> None:
        """Returns when the trainer may compute."""

    async def for_engines(self) -> None:
        """Returns when the engines may be asked, with the weights that were published last."""

    async def hand_over(self, publish: Callable[[], Awaitable[None]]) -> None:
        """Gives the engines what they need to take a publication over, and then the publication."""
        await publish()


class SharedDevice(Device):
    """Who computes has its memory there, and the other one has given it back.

    Weights that an engine has given back are gone: it is given the device together with a publication, of new weights
    or of the present ones once more. The trainer's are in the memory of the host meanwhile, and are published from
    there. What a probe has drawn is compared when it is the trainer's turn again.

    Args:
        engines: By name.
        trainer: Holds its memory.
        publisher: Of the trainer's weights to these engines; the turns are among its metrics.
        released: Whether the engines hold none: the trainer has the first turn.
    """

    def __init__(
        self, engines: Mapping[str, Engine], trainer: Released, publisher: Publisher, released: bool = True
    ) -> None:
        self._engines = engines
        self._trainer = trainer
        self._publisher = publisher
        self._turns = 0
        self._changing = asyncio.Lock()
        self._trainer_has_it = released
        publisher.released()

    async def for_trainer(self) -> None:
        async with self._changing:
            if not self._trainer_has_it:
                began = time.monotonic()
                with self.timeline.span("device", "to_trainer"):
                    await release_engines(self._engines)
                    self._publisher.released()
                    await asyncio.to_thread(self._trainer.restore)
                self._changed("to_trainer", began)
            self._trainer_has_it = self._publisher.comparing = True
        await self._publisher.settled()

    async def for_engines(self) -> None:
        if self._trainer_has_it:
            await self.hand_over(lambda: self._publisher.again(self._trainer))

    async def hand_over(self, publish: Callable[[], Awaitable[None]]) -> None:
        async with self._changing:
            if self._trainer_has_it:
                await self._publisher.settled()
                began = time.monotonic()
                with self.timeline.span("device", "to_engines"):
                    await asyncio.to_thread(self._trainer.release, EVERYTHING)
                    await asyncio.gather(*(engine.restore() for engine in self._engines.values()))
                self._changed("to_engines", began)
            self._trainer_has_it = self._publisher.comparing = False
            await publish()

    def _changed(self, to: str, began: float) -> None:
        self._turns += 1
        seconds = time.monotonic() - began
        self._publisher.metrics |= {"device/turns": float(self._turns), f"device/{to}_s": seconds}


async def release_engines(engines: Mapping[str, Engine]) -> None:
    """Returns when no engine has memory on the device; requests in flight wait."""
    await asyncio.gather(*(engine.release() for engine in engines.values()))

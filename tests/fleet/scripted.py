"""Engines without a model that a test holds in its hand: they die, hang, lag behind and answer when they are told."""

import asyncio
from collections.abc import Iterable, Sequence

import numpy as np

from relax_core.api.engine import Engine, GenerateRequest, Generation, Health
from relax_core.api.errors import RelaxError, WeightSyncError
from relax_core.api.rows import StopReason
from relax_core.api.weights import Acknowledgement, Bucket, Manifest


class Scripted(Engine):
    """Answers at once with its name's place in the fleet, unless it is ``slow``: then when ``answer`` is called."""

    def __init__(self, number: int, slow: bool = False) -> None:
        self.number = number
        self.slow = slow
        self.dead = self.hangs = self.refuses = False
        self.version = 0
        self.calls: list[str] = []
        self.keys: list[str] = []
        self.running: dict[str, asyncio.Future[None]] = {}

    async def start(self) -> None:
        self._alive()

    async def generate(self, request: GenerateRequest) -> Generation:
        self._alive()
        if not request.prompt_ids:
            raise RelaxError("the prompt is empty")
        self.keys.append(request.key)
        if self.slow:
            self.running[request.key] = asyncio.get_running_loop().create_future()
            try:
                await self.running[request.key]
            finally:
                del self.running[request.key]
        self.generated_tokens += 1
        text, version = np.zeros(1, np.float32), ((0, self.version),)
        return Generation(request.key, (self.number,), text, StopReason.STOP, version)

    def answer(self) -> None:
        """Every request is answered now."""
        for result in self.running.values():
            result.set_result(None)

    def die(self) -> None:
        """Requests in flight fail, and all later ones."""
        self.dead = True
        for result in self.running.values():
            result.set_exception(RelaxError(f"engine {self.number} is dead"))

    async def abort(self, keys: Sequence[str] | None = None) -> None:
        await self._call("abort")

    async def pause(self) -> None:
        await self._call("pause")

    async def resume(self) -> None:
        await self._call("resume")

    async def update(self, manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        await self._call("update")
        if self.refuses:
            raise WeightSyncError(f"engine {self.number} has no room")
        self.version = manifest.version
        return Acknowledgement(manifest.version, frozenset(name for bucket in buckets for name in bucket), 1)

    async def release(self, what: frozenset[str] = frozenset()) -> None:
        await self._call("release")

    async def restore(self) -> None:
        await self._call("restore")

    async def health(self) -> Health:
        if self.hangs:
            await asyncio.Event().wait()
        self._alive()
        return Health(True, len(self.running), 0, self.version)

    async def close(self) -> None:
        await self._call("close")

    async def _call(self, name: str) -> None:
        self._alive()
        if self.hangs:
            await asyncio.Event().wait()
        self.calls.append(name)

    def _alive(self) -> None:
        if self.dead:
            raise RelaxError(f"engine {self.number} is dead")

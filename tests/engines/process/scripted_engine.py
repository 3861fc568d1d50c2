"""An engine without a model that does what its configuration and the keys of its requests say: takes time, or fails."""

import asyncio
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from relax_core.api.context import Context
from relax_core.api.engine import Engine, GenerateRequest, Generation, Health
from relax_core.api.errors import ConfigError, PluginError, PromptTooLong, WeightSyncError
from relax_core.api.rows import StopReason
from relax_core.api.weights import Acknowledgement, Bucket, Manifest
from relax_core.config import EngineConfig


class ScriptedConfig(EngineConfig):
    start: Literal["well", "config", "plugin", "model", "fault", "wait", "block"] = "well"


class RefinedError(ConfigError):
    """A plugin's own kind of a known error."""


class ScriptedEngine(Engine):
    def __init__(self, config: ScriptedConfig, context: Context) -> None:
        self._start = config.start
        self._count = context.count
        self._aborted = asyncio.Event()
        self._cancelled = 0
        self._torn = 0

    async def start(self) -> None:
        if self._start == "config":
            raise RefinedError("engine.start: 'config' is not right")
        if self._start == "plugin":
            raise PluginError("no backend")
        if self._start == "model":
            raise ValueError("of no use")
        if self._start == "fault":
            raise ZeroDivisionError("by zero")
        if self._start == "wait":
            await asyncio.sleep(3600)
        if self._start == "block":
            time.sleep(3600)

    async def generate(self, request: GenerateRequest) -> Generation:
        if request.key == "too long":
            raise PromptTooLong("request 'too long': no room")
        if request.key == "fault":
            raise ZeroDivisionError("by zero")
        if request.key == "block":
            time.sleep(3600)
        if request.key == "count":
            thread = threading.Thread(target=self._count, args=("engine_errors", 3))
            thread.start()
            thread.join()
        if request.key.startswith("wait"):
            self.generated_tokens += 1
            try:
                await self._aborted.wait()
            except asyncio.CancelledError:
                self._cancelled += 1
                raise
        return Generation(request.key, (1,), np.zeros(1, np.float32), StopReason.STOP, ((0, 0),))

    async def abort(self, keys: Sequence[str] | None = None) -> None:
        self._aborted.set()

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def update(self, manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        """Looks at the tensors twice; told by ``changed`` how many were not the same until the end."""
        tensors = {name: tensor for bucket in buckets for name, tensor in bucket.items()}
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        await asyncio.sleep(0.3)
        self._torn += sum(not before[name].equal(tensor) for name, tensor in tensors.items())
        if manifest.version < 0:
            raise WeightSyncError("does not grow")
        return Acknowledgement(manifest.version, frozenset(tensors), self._torn)

    async def release(self, what: frozenset[str] = frozenset()) -> None: ...

    async def restore(self) -> None: ...

    async def health(self) -> Health:
        return Health(True, 0, 0, 0, f"{self._cancelled} cancelled")

    async def close(self) -> None:
        self._aborted.set()

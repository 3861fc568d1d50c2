"""The embedded engine: an asyncio front, and one thread in which everything that touches the model runs."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from relax_core.api.context import Context
from relax_core.api.engine import Capability, Engine, GenerateRequest, Generation, Health
from relax_core.api.errors import ConfigError, RelaxError, WeightSyncError
from relax_core.api.rows import StopReason
from relax_core.api.weights import Acknowledgement, Bucket, Manifest
from relax_core.engines.torch.batch import Batch, Ended
from relax_core.engines.torch.config import TorchEngineConfig
from relax_core.engines.torch.model import CausalModel, load_model
from relax_core.engines.torch.requests import check_request, next_batch
from relax_core.engines.torch.trajectory import Trajectory
from relax_core.engines.torch.weights import copy_weights, release_weights, restore_weights, verified

Result = TypeVar("Result")
logger = logging.getLogger(__name__)


class TorchEngine(Engine):
    """Decodes waiting requests in batches; a request that arrives meanwhile waits for the next one.

    A batch ends early when the engine is paused or updated. Its trajectories then wait with the tokens they have, and
    the next batch computes their keys and values anew: no cache outlives a batch, so none outlives its weights.
    """

    def __init__(self, config: TorchEngineConfig, context: Context) -> None:
        self._config = config
        self._context = context
        self.capabilities = frozenset(Capability)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="torch-engine")
        self._turn = asyncio.Lock()
        """Held by whoever works with the model: a batch, or an exchange of weights."""
        self._wake = asyncio.Event()
        self._model: CausalModel | None = None
        self._worker: asyncio.Task[None] | None = None
        self._in_flight: dict[str, Trajectory] = {}
        self._waiting: dict[str, Trajectory] = {}
        self._arrivals = 0
        self._version = 0
        self._paused = False
        self._halts = 0
        self._released: frozenset[str] = frozenset()
        self._weightless = False
        self._closed = False

    async def start(self) -> None:
        """Loads the model of ``context.model``; its version is 0."""
        source = self._context.model
        if source is None:
            raise ConfigError("engine: the torch engine needs a model")
        self._model = await self._on_thread(
            lambda: load_model(source, self._context.device, self._config.context_length)
        )
        if self._model.tokenizer is None:
            self.capabilities -= {Capability.STOP_STRINGS}
        self._worker = asyncio.create_task(self._serve(), name="torch-engine")

    async def generate(self, request: GenerateRequest) -> Generation:
        """Generates one trajectory; see :meth:`Engine.generate`."""
        model = self._usable()
        if request.key in self._in_flight:
            raise RelaxError(f"request {request.key!r}: another request with this key is in flight")
        check_request(request, model, self.capabilities)
        limit = min(request.sampling.max_new_tokens, model.context_length - len(request.prompt_ids))
        stop_ids = model.end_ids | frozenset(request.sampling.stop_token_ids)
        result: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        trajectory = Trajectory(request, self._arrivals, limit, stop_ids, result)
        self._arrivals += 1
        self._in_flight[request.key] = self._waiting[request.key] = trajectory
        self._wake.set()
        try:
            return await result
        finally:
            # also when the caller stopped waiting: then the batch must drop the trajectory
            trajectory.aborted = True
            self._waiting.pop(request.key, None)
            del self._in_flight[request.key]

    async def abort(self, keys: Sequence[str] | None = None) -> None:
        """Ends requests at the next decode step; those that wait end at once. Unknown keys have ended already."""
        for key in list(self._in_flight) if keys is None else keys:
            if key in self._in_flight:
                self._in_flight[key].aborted = True
        self._end_aborted()

    async def pause(self) -> None:
        """Returns when no token is being computed; requests stay, and so do their tokens."""
        self._paused = True
        async with self._halted():
            pass

    async def resume(self) -> None:
        """Goes on after ``pause``."""
        self._paused = False
        self._wake.set()

    async def update(self, manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        """Takes over a full publication. A refused one changes nothing.

        Requests in flight go on with the new weights, from the token at which they are.

        Raises:
            WeightSyncError: A name, shape, dtype or checksum is not that of the manifest or of the model, the version
                does not grow, or the weights' memory is released.
        """
        async with self._halted():
            return await self._on_thread(lambda: self._take_over(manifest, buckets))

    async def release(self, what: frozenset[str] = frozenset({"weights", "cache"})) -> None:
        """Gives memory back. No batch runs until ``restore``; released weights must then be published anew."""
        unknown = what - {"weights", "cache"}
        if unknown:
            raise RelaxError(f"release: unknown {sorted(unknown)}; the torch engine releases 'weights' and 'cache'")
        model = self._loaded()
        self._released |= what
        async with self._halted():
            if "weights" in what:
                self._weightless = True
                await self._on_thread(lambda: release_weights(model.network))
            if model.device.type != "cpu":
                torch.get_device_module(model.device).empty_cache()

    async def restore(self) -> None:
        """Takes the memory again."""
        model = self._loaded()
        async with self._halted():
            if "weights" in self._released:
                await self._on_thread(lambda: restore_weights(model.network))
            self._released = frozenset()

    async def health(self) -> Health:
        """Healthy when the next request would be served, now or after ``resume``."""
        running = len(self._in_flight) - len(self._waiting)
        try:
            self._usable()
        except RelaxError as error:
            return Health(False, running, len(self._waiting), self._version, str(error))
        return Health(True, running, len(self._waiting), self._version, "paused" if self._paused else "")

    async def close(self) -> None:
        """Ends the engine; requests in flight fail with :class:`RelaxError`."""
        self._closed = True
        self._wake.set()
        if self._worker is not None:
            await self._worker
        for trajectory in self._in_flight.values():
            self._deliver([Ended(trajectory, RelaxError(f"request {trajectory.request.key!r}: the engine was closed"))])
        self._thread.shutdown()
        self._model = None

    async def _serve(self) -> None:
        """Runs one batch after the other."""
        try:
            while not self._closed:
                if self._blocked or not self._waiting:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                async with self._turn:
                    if not self._blocked:
                        await self._run_batch()
        finally:
            self._closed = True

    async def _run_batch(self) -> None:
        batch = next_batch(self._waiting.values(), self._config)
        for trajectory in batch:
            del self._waiting[trajectory.request.key]
        try:
            await self._on_thread(lambda: self._decode(batch))
        except Exception as error:
            logger.exception("a batch of %d requests failed", len(batch))
            self._context.count("engine_errors", 1)
            self._deliver([Ended(each, _failure(each, error)) for each in batch])
        for trajectory in batch:
            if not trajectory.result.done():
                self._waiting[trajectory.request.key] = trajectory
        self._end_aborted()

    def _decode(self, trajectories: Sequence[Trajectory]) -> None:
        """On the model's thread: decodes until all have ended, or the engine is wanted for something else."""
        assert self._model is not None and self._worker is not None
        loop = self._worker.get_loop()
        with torch.inference_mode():
            batch = Batch(self._model, trajectories, self._version)
            while len(batch) and not self._blocked:
                ended = batch.step()
                if ended:
                    loop.call_soon_threadsafe(self._deliver, ended)

    def _take_over(self, manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        """On the model's thread, so that weights and version change together even if the caller stops waiting."""
        network = self._loaded().network
        if manifest.version <= self._version:
            raise WeightSyncError(f"version {manifest.version} does not come after version {self._version}")
        if "weights" in self._released:
            raise WeightSyncError(f"version {manifest.version}: the weights' memory is released; restore comes first")
        own = network.state_dict()
        arrived = verified(manifest, buckets, own)
        self._weightless = True
        changed = copy_weights(own, arrived)
        self._version = manifest.version
        self._weightless = False
        return Acknowledgement(manifest.version, frozenset(arrived), changed)

    @property
    def _blocked(self) -> bool:
        """Whether no token may be computed now."""
        return bool(self._closed or self._paused or self._halts or self._released or self._weightless)

    @contextlib.asynccontextmanager
    async def _halted(self) -> AsyncIterator[None]:
        """Keeps batches from running; entered when the present one has made way."""
        self._halts += 1
        try:
            async with self._turn:
                yield
        finally:
            self._halts -= 1
            self._wake.set()

    def _deliver(self, ended: Sequence[Ended]) -> None:
        for each in ended:
            result = each.trajectory.result
            if result.done():
                continue
            if isinstance(each.outcome, Generation):
                result.set_result(each.outcome)
            else:
                result.set_exception(each.outcome)

    def _end_aborted(self) -> None:
        for key, trajectory in list(self._waiting.items()):
            if trajectory.aborted:
                del self._waiting[key]
                self._deliver([Ended(trajectory, trajectory.generation(StopReason.ABORT))])

    def _loaded(self) -> CausalModel:
        if self._model is None or self._closed:
            raise RelaxError("the torch engine is closed" if self._closed else "the torch engine was not started")
        return self._model

    def _usable(self) -> CausalModel:
        """The model, if it has weights to answer a request with."""
        model = self._loaded()
        if self._released:
            raise RelaxError(f"the torch engine has released its {' and '.join(sorted(self._released))}")
        if self._weightless:
            raise RelaxError("the torch engine has no weights; they must be published anew")
        return model

    async def _on_thread(self, function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


def _failure(trajectory: Trajectory, cause: Exception) -> RelaxError:
    error = RelaxError(f"request {trajectory.request.key!r}: decoding failed: {type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error

"""The embedded engine: an asyncio front, and one thread in which everything that touches the model runs."""

import asyncio
import logging
from collections.abc import Iterable, Sequence

import torch

from relax_core.api.context import Context
from relax_core.api.engine import Capability, Engine, GenerateRequest, Generation, Health
from relax_core.api.errors import ConfigError, RelaxError, WeightSyncError
from relax_core.api.rows import StopReason
from relax_core.api.weights import Acknowledgement, Bucket, Manifest
from relax_core.engines.requests import check_request, ended_by_context
from relax_core.engines.torch.batch import Batch, Ended
from relax_core.engines.torch.config import TorchEngineConfig
from relax_core.engines.torch.model import CausalModel, load_model
from relax_core.engines.torch.scheduling import Queue
from relax_core.engines.torch.stepwise import check_deterministic
from relax_core.engines.torch.trajectory import TorchTrajectory
from relax_core.engines.torch.weights import copy_weights, release_weights, restore_weights
from relax_core.engines.turns import Turns
from relax_core.weights.intake import Intake
from relax_core.weights.inventory import Inventory, inventory_of

logger = logging.getLogger(__name__)


class TorchEngine(Engine):
    """Decodes requests in one batch, which they enter and leave between two steps (continuous batching).

    Where a layer of the model keeps a window or a state of the past instead of all tokens, requests leave between steps
    but enter only when the batch is empty.

    A batch ends early when the engine is paused or updated. Its trajectories then wait with the tokens they have, and
    the next batch computes their keys and values anew: no cache outlives a batch, so none outlives its weights.
    """

    def __init__(self, config: TorchEngineConfig, context: Context) -> None:
        self._config = config
        self._context = context
        self.capabilities = frozenset(Capability) - (frozenset() if context.encoders else {Capability.MEDIA})
        self._turns = Turns("the torch engine")
        self._model: CausalModel | None = None
        self._intake = Intake(Inventory())
        self._worker: asyncio.Task[None] | None = None
        self._in_flight: dict[str, TorchTrajectory] = {}
        self._queue = Queue(config)
        self._arrivals = 0
        self.generated_tokens = 0

    async def start(self) -> None:
        """Loads the model of ``context.model``; its version is 0."""
        source = self._context.model
        if source is None:
            raise ConfigError("engine: the torch engine needs a model")
        model = await self._turns.on_thread(
            lambda: load_model(source, self._context.device, self._config.context_length, self._context.encoders)
        )
        if self._config.deterministic:
            await self._turns.on_thread(lambda: check_deterministic(model))
        self._intake = Intake(await self._turns.on_thread(lambda: inventory_of(model.network.state_dict())))
        self._model = model
        if model.tokenizer is None:
            self.capabilities -= {Capability.STOP_STRINGS}
        if model.media is None:
            self.capabilities -= {Capability.MEDIA}
        self._worker = asyncio.create_task(self._serve(), name="torch-engine")

    async def generate(self, request: GenerateRequest) -> Generation:
        """Generates one trajectory; see :meth:`Engine.generate`."""
        model = self._usable()
        if request.key in self._in_flight:
            raise RelaxError(f"request {request.key!r}: another request with this key is in flight")
        check_request(request, model.context_length, model.vocabulary, self.capabilities)
        if model.media and (problem := model.media.problem(request.prompt_ids, request.media)):
            raise RelaxError(f"request {request.key!r}: {problem}")
        limit = min(request.sampling.max_new_tokens, model.context_length - len(request.prompt_ids))
        stop_ids = model.end_ids | frozenset(request.sampling.stop_token_ids)
        result: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        trajectory = TorchTrajectory(request, limit, result, self._arrivals, stop_ids)
        self._arrivals += 1
        self._in_flight[request.key] = trajectory
        self._queue.put([trajectory])
        self._turns.wake()
        try:
            generation = await result
        finally:
            # also when the caller stopped waiting: then queue and batch must drop the trajectory
            trajectory.aborted = True
            del self._in_flight[request.key]
            if result.cancelled():
                self._end_aborted()
        if ended_by_context(request, generation):
            self._context.count("engine/context_limit", 1)
        return generation

    async def abort(self, keys: Sequence[str] | None = None) -> None:
        """Ends requests at the next decode step; those that wait end at once. Unknown keys have ended already."""
        for key in list(self._in_flight) if keys is None else keys:
            if key in self._in_flight:
                self._in_flight[key].aborted = True
        self._end_aborted()

    async def pause(self) -> None:
        """Returns when no token is being computed; requests stay, and so do their tokens."""
        await self._turns.pause()

    async def resume(self) -> None:
        """Goes on after ``pause``."""
        await self._turns.resume()

    async def receive(self, manifest: Manifest, buckets: Iterable[Bucket]) -> None:
        """Verifies a publication on a thread of its own, and holds it where it is until ``update``."""
        own = self._loaded().network.state_dict()
        await self._intake.receive(manifest, buckets, own if self._turns.has_weights else None)

    async def update(self, manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        """Takes over a publication, full or a delta. A refused one changes nothing.

        Requests in flight go on with the new weights, from the token at which they are.

        Raises:
            WeightSyncError: A name, shape, dtype or checksum is not that of the manifest or of the model, the version
                does not grow, or the weights' memory is released.
        """
        async with self._turns.halted():
            return await self._turns.on_thread(lambda: self._take_over(manifest, buckets))

    async def release(self, what: frozenset[str] = frozenset({"weights", "cache"})) -> None:
        """Gives memory back. No batch runs until ``restore``; released weights must then be published anew."""
        model = self._loaded()
        async with self._turns.releasing(what):
            if "weights" in what:
                await self._turns.on_thread(lambda: release_weights(model.network))
                self._intake.release()
            if model.device.type != "cpu":
                torch.get_device_module(model.device).empty_cache()

    async def restore(self) -> None:
        """Takes the memory again."""
        model = self._loaded()
        async with self._turns.restoring():
            if "weights" in self._turns.released:
                await self._turns.on_thread(lambda: restore_weights(model.network))

    async def health(self) -> Health:
        """Healthy when the next request would be served, now or after ``resume``."""
        waiting = len(self._queue)
        running = len(self._in_flight) - waiting
        try:
            self._usable()
        except RelaxError as error:
            return Health(False, running, waiting, self._intake.version, str(error))
        return Health(True, running, waiting, self._intake.version, "paused" if self._turns.paused else "")

    async def close(self) -> None:
        """Ends the engine; requests in flight fail with :class:`RelaxError`."""
        self._turns.end("the torch engine is closed")
        if self._worker is not None:
            await self._worker
        self._turns.shutdown()
        self._model = None

    async def _serve(self) -> None:
        """Runs one batch after the other."""
        try:
            await self._turns.take(lambda: self._queue, self._run_batch)
        finally:
            self._turns.end("the torch engine has stopped")
            for key, trajectory in self._in_flight.items():
                trajectory.end(RelaxError(f"request {key!r}: {self._turns.ended}"))

    async def _run_batch(self) -> None:
        batch = Batch(self._loaded(), self._intake.version, self._config.deterministic)
        try:
            await self._turns.on_thread(lambda: self._decode(batch))
        except Exception as error:
            logger.exception("a batch of %d requests failed", len(batch.trajectories))
            self._context.count("engine_errors", 1)
            _deliver([Ended(each, _failure(each, error)) for each in batch.trajectories])
        else:
            self._queue.put(batch.trajectories)
            self._end_aborted()

    def _decode(self, batch: Batch) -> None:
        """On the model's thread: decodes until no one is left, or the engine is wanted for something else."""
        assert self._worker is not None
        loop = self._worker.get_loop()
        with torch.inference_mode():
            while not self._turns.blocked:
                if batch.open:
                    batch.enter(self._queue.take(batch.trajectories))
                if not batch.trajectories:
                    break
                step = batch.step()
                self.generated_tokens += step.tokens
                if step.ended:
                    loop.call_soon_threadsafe(_deliver, step.ended)

    def _take_over(self, manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        """On the model's thread, so that weights and version change together even if the caller stops waiting."""
        network = self._loaded().network
        if "weights" in self._turns.released:
            raise WeightSyncError(f"version {manifest.version}: the weights' memory is released; restore comes first")
        own = network.state_dict()
        arrived = self._intake.take(manifest, buckets, own if self._turns.has_weights else None)
        with self._turns.replacing():
            copy_weights(own, arrived)
        return self._intake.swapped(manifest)

    def _end_aborted(self) -> None:
        _deliver([Ended(each, StopReason.ABORT) for each in self._queue.take_aborted()])

    def _loaded(self) -> CausalModel:
        self._turns.check_open()
        if self._model is None:
            raise RelaxError("the torch engine was not started")
        return self._model

    def _usable(self) -> CausalModel:
        """The model, if it has weights to answer a request with."""
        model = self._loaded()
        self._turns.check_serving()
        return model


def _deliver(ended: Sequence[Ended]) -> None:
    for each in ended:
        each.trajectory.end(each.outcome)


def _failure(trajectory: TorchTrajectory, cause: Exception) -> RelaxError:
    error = RelaxError(f"request {trajectory.request.key!r}: decoding failed: {type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error

"""The vLLM engine: an asyncio front, and one thread in which everything that touches vLLM runs."""

import asyncio
import logging
from collections.abc import Iterable, Sequence

import torch

from relax_core.api.context import Context
from relax_core.api.engine import Capability, Engine, GenerateRequest, Generation, Health
from relax_core.api.errors import RelaxError, WeightSyncError
from relax_core.api.rows import StopReason
from relax_core.api.weights import Acknowledgement, Bucket, Manifest
from relax_core.engines.requests import ended_by_context
from relax_core.engines.turns import Turns
from relax_core.models.load import load_language_model
from relax_core.weights.intake import Intake
from relax_core.weights.inventory import Inventory, inventory_of
from relax_vllm.config import VLLMEngineConfig
from relax_vllm.in_process import STOP_REASONS, Advance, InProcessVLLM
from relax_vllm.requests import check_request
from relax_vllm.trajectory import VLLMTrajectory

logger = logging.getLogger(__name__)


class VLLMEngine(Engine):
    """Steps vLLM as long as there are requests. Pauses, updates and new requests come between two steps."""

    capabilities = frozenset({Capability.STOP_STRINGS, Capability.ABORT_PARTIAL, Capability.UPDATE_IN_PLACE})

    def __init__(self, config: VLLMEngineConfig, context: Context) -> None:
        self._config = config
        self._context = context
        self._turns = Turns("the vllm engine")
        self._vllm: InProcessVLLM | None = None
        self._intake = Intake(Inventory())
        self._worker: asyncio.Task[None] | None = None
        self._in_flight: dict[str, VLLMTrajectory] = {}
        """By key: all requests that ``generate`` waits for."""
        self._running: dict[str, VLLMTrajectory] = {}
        """By request id: those that vLLM has."""
        self._forgotten: list[str] = []
        """Ids that vLLM still has, and nobody waits for."""
        self._arrivals = 0
        self.generated_tokens = 0

    async def start(self) -> None:
        """Loads the model of ``context.model``; its version is 0."""
        source = self._context.model
        if source is None:
            raise RelaxError("the vllm engine needs a model")
        device = torch.device(self._context.device)
        # vLLM cannot tell what a publication must be: it fuses, pads and packs what it loads.
        inventory = await self._turns.on_thread(lambda: inventory_of(load_language_model(source).state_dict()))
        self._intake = Intake(inventory)
        self._vllm = await self._turns.on_thread(lambda: InProcessVLLM(source, self._config, device))
        self._worker = asyncio.create_task(self._serve(), name="vllm-engine")

    async def generate(self, request: GenerateRequest) -> Generation:
        """Generates one trajectory; see :meth:`Engine.generate`."""
        vllm = self._usable()
        if request.key in self._in_flight:
            raise RelaxError(f"request {request.key!r}: another request with this key is in flight")
        check_request(request, vllm.context_length, vllm.vocabulary, self.capabilities)
        limit = min(request.sampling.max_new_tokens, vllm.context_length - len(request.prompt_ids))
        result: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        trajectory = VLLMTrajectory(request, limit, result, str(self._arrivals))
        self._arrivals += 1
        self._in_flight[request.key] = trajectory
        self._turns.wake()
        try:
            generation = await result
        finally:
            self._forget(trajectory)  # also when the caller stopped waiting
        if ended_by_context(request, generation):
            self._context.count("engine/context_limit", 1)
        return generation

    async def abort(self, keys: Sequence[str] | None = None) -> None:
        """Ends requests at once with the tokens they have. Unknown keys have ended already."""
        for key in list(self._in_flight) if keys is None else keys:
            if key in self._in_flight:
                self._end(self._in_flight[key], StopReason.ABORT)

    async def pause(self) -> None:
        """Returns when no token is being computed; requests stay, and so do their tokens."""
        await self._turns.pause()

    async def resume(self) -> None:
        """Goes on after ``pause``."""
        await self._turns.resume()

    async def receive(self, manifest: Manifest, buckets: Iterable[Bucket]) -> None:
        """Verifies a publication on a thread of its own, and holds it where it is until ``update``."""
        self._loaded()
        await self._intake.receive(manifest, buckets)

    async def update(self, manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        """Takes over a full publication. A refused one changes nothing.

        Requests in flight go on with the new weights, from the token at which they are.

        Raises:
            WeightSyncError: A name, shape, dtype or checksum is not that of the manifest or of the model, the version
                does not grow, the weights' memory is released, or vLLM failed to load what was right.
        """
        async with self._turns.halted():
            return await self._turns.on_thread(lambda: self._take_over(manifest, buckets))

    async def release(self, what: frozenset[str] = frozenset({"weights", "cache"})) -> None:
        """Serves nothing until ``restore``; released weights must then be published anew. vLLM keeps the memory."""
        self._loaded()
        async with self._turns.releasing(what):
            if "weights" in what:
                self._intake.release()
            logger.warning("the vllm engine serves nothing now, but vLLM keeps its memory")

    async def restore(self) -> None:
        """Ends ``release``."""
        self._loaded()
        async with self._turns.restoring():
            pass

    async def health(self) -> Health:
        """Healthy when the next request would be served, now or after ``resume``."""
        running, waiting = len(self._running), len(self._in_flight) - len(self._running)
        try:
            self._usable()
        except RelaxError as error:
            return Health(False, running, waiting, self._intake.version, str(error))
        return Health(True, running, waiting, self._intake.version, "paused" if self._turns.paused else "")

    async def close(self) -> None:
        """Ends vLLM; requests in flight fail with :class:`RelaxError`."""
        self._fail("the vllm engine is closed")
        if self._worker is not None:
            await self._worker
        vllm, self._vllm = self._vllm, None
        if vllm is not None:
            await self._turns.on_thread(vllm.shutdown)
        self._turns.shutdown()

    async def _serve(self) -> None:
        """Runs one step after the other."""
        try:
            await self._turns.take(lambda: self._in_flight, self._step)
        finally:
            self._fail("the vllm engine has stopped")

    async def _step(self) -> None:
        added = [each for each in self._in_flight.values() if each.request_id not in self._running]
        self._running |= {each.request_id: each for each in added}
        forgotten, self._forgotten = self._forgotten, []
        try:
            advances = await self._turns.on_thread(lambda: self._advance(forgotten, added))
        except Exception as error:
            logger.exception("vLLM failed")
            self._context.count("engine_errors", 1)
            self._fail(f"vLLM failed: {type(error).__name__}: {error}")
            return
        for advance in advances:
            if advance.request_id in self._running:
                self._take(self._running[advance.request_id], advance)

    def _advance(self, forgotten: Sequence[str], added: Sequence[VLLMTrajectory]) -> list[Advance]:
        """On vLLM's thread."""
        assert self._vllm is not None
        self._vllm.abort(forgotten)
        for trajectory in added:
            self._vllm.add(trajectory)
        return self._vllm.step()

    def _take(self, trajectory: VLLMTrajectory, advance: Advance) -> None:
        try:
            for token_id, logprob in zip(advance.token_ids, advance.logprobs, strict=True):
                trajectory.append(token_id, logprob, self._intake.version)
                self.generated_tokens += 1
        except RelaxError as error:
            self._end(trajectory, error)
            return
        if advance.finished is not None:
            del self._running[trajectory.request_id]
            reason = STOP_REASONS.get(advance.finished)
            unknown = RelaxError(f"request {trajectory.request.key!r}: vLLM ended it by {advance.finished!r}")
            self._end(trajectory, unknown if reason is None else reason)

    def _end(self, trajectory: VLLMTrajectory, outcome: StopReason | RelaxError) -> None:
        """Lets ``generate`` return or raise, and vLLM forget the request."""
        self._forget(trajectory)
        trajectory.end(outcome)

    def _forget(self, trajectory: VLLMTrajectory) -> None:
        if self._in_flight.get(trajectory.request.key) is trajectory:
            del self._in_flight[trajectory.request.key]
        if self._running.pop(trajectory.request_id, None) is not None:
            self._forgotten.append(trajectory.request_id)

    def _fail(self, reason: str) -> None:
        """For good: all requests fail, now and later."""
        self._turns.end(reason)
        for trajectory in list(self._in_flight.values()):
            self._end(trajectory, RelaxError(f"request {trajectory.request.key!r}: {self._turns.ended}"))

    def _take_over(self, manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        """On vLLM's thread, so that weights and version change together even if the caller stops waiting."""
        vllm = self._loaded()
        if "weights" in self._turns.released:
            raise WeightSyncError(f"version {manifest.version}: the weights are released; restore comes first")
        arrived = self._intake.take(manifest, buckets)
        tied = self._intake.inventory.tied
        with self._turns.replacing():
            try:
                vllm.reload({name: tensor for name, tensor in arrived.items() if name not in tied})
            except Exception as error:
                raise WeightSyncError(f"version {manifest.version}: vLLM failed to load it: {error}") from error
        return self._intake.swapped(manifest)

    def _loaded(self) -> InProcessVLLM:
        self._turns.check_open()
        if self._vllm is None:
            raise RelaxError("the vllm engine was not started")
        return self._vllm

    def _usable(self) -> InProcessVLLM:
        """vLLM, if it has weights to answer a request with."""
        vllm = self._loaded()
        self._turns.check_serving()
        return vllm

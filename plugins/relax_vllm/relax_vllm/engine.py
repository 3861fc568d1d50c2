"""The vLLM engine: an asyncio front, and one thread in which everything that touches vLLM runs."""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from relax_core.api.context import Context
from relax_core.api.engine import Capability, Engine, GenerateRequest, Generation, Health
from relax_core.api.errors import RelaxError, WeightSyncError
from relax_core.api.rows import StopReason
from relax_core.api.weights import Acknowledgement, Bucket, Manifest
from relax_vllm.config import VLLMEngineConfig
from relax_vllm.in_process import STOP_REASONS, Advance, InProcessVLLM
from relax_vllm.inventory import Inventory, take_inventory
from relax_vllm.requests import check_request
from relax_vllm.trajectory import Trajectory

Result = TypeVar("Result")
logger = logging.getLogger(__name__)


class VLLMEngine(Engine):
    """Steps vLLM as long as there are requests. Pauses, updates and new requests come between two steps."""

    capabilities = frozenset({Capability.STOP_STRINGS, Capability.ABORT_PARTIAL, Capability.UPDATE_IN_PLACE})

    def __init__(self, config: VLLMEngineConfig, context: Context) -> None:
        self._config = config
        self._context = context
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vllm-engine")
        self._turn = asyncio.Lock()
        """Held by whoever works with vLLM: a step, or an exchange of weights."""
        self._wake = asyncio.Event()
        self._vllm: InProcessVLLM | None = None
        self._inventory: Inventory | None = None
        self._worker: asyncio.Task[None] | None = None
        self._in_flight: dict[str, Trajectory] = {}
        """By key: all requests that ``generate`` waits for."""
        self._running: dict[str, Trajectory] = {}
        """By request id: those that vLLM has."""
        self._forgotten: list[str] = []
        """Ids that vLLM still has, and nobody waits for."""
        self._arrivals = 0
        self._version = 0
        self._paused = False
        self._halts = 0
        self._released: frozenset[str] = frozenset()
        self._weightless = False
        self._failure = ""

    async def start(self) -> None:
        """Loads the model of ``context.model``; its version is 0."""
        source = self._context.model
        if source is None:
            raise RelaxError("the vllm engine needs a model")
        device = torch.device(self._context.device)
        self._inventory = await self._on_thread(lambda: take_inventory(source))
        self._vllm = await self._on_thread(lambda: InProcessVLLM(source, self._config, device))
        self._worker = asyncio.create_task(self._serve(), name="vllm-engine")

    async def generate(self, request: GenerateRequest) -> Generation:
        """Generates one trajectory; see :meth:`Engine.generate`."""
        vllm = self._usable()
        if request.key in self._in_flight:
            raise RelaxError(f"request {request.key!r}: another request with this key is in flight")
        check_request(request, vllm.context_length, vllm.vocabulary)
        limit = min(request.sampling.max_new_tokens, vllm.context_length - len(request.prompt_ids))
        result: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        trajectory = Trajectory(request, str(self._arrivals), limit, result)
        self._arrivals += 1
        self._in_flight[request.key] = trajectory
        self._wake.set()
        try:
            return await result
        finally:
            self._forget(trajectory)  # also when the caller stopped waiting

    async def abort(self, keys: Sequence[str] | None = None) -> None:
        """Ends requests at once with the tokens they have. Unknown keys have ended already."""
        for key in list(self._in_flight) if keys is None else keys:
            if key in self._in_flight:
                self._end(self._in_flight[key], StopReason.ABORT)

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
                does not grow, the weights' memory is released, or vLLM failed to load what was right.
        """
        async with self._halted():
            return await self._on_thread(lambda: self._take_over(manifest, buckets))

    async def release(self, what: frozenset[str] = frozenset({"weights", "cache"})) -> None:
        """Serves nothing until ``restore``; released weights must then be published anew. vLLM keeps the memory."""
        unknown = what - {"weights", "cache"}
        if unknown:
            raise RelaxError(f"release: unknown {sorted(unknown)}; the vllm engine releases 'weights' and 'cache'")
        self._loaded()
        self._released |= what
        self._weightless |= "weights" in what
        async with self._halted():
            logger.warning("the vllm engine serves nothing now, but vLLM keeps its memory")

    async def restore(self) -> None:
        """Ends ``release``."""
        self._loaded()
        self._released = frozenset()
        self._wake.set()

    async def health(self) -> Health:
        """Healthy when the next request would be served, now or after ``resume``."""
        running, waiting = len(self._running), len(self._in_flight) - len(self._running)
        try:
            self._usable()
        except RelaxError as error:
            return Health(False, running, waiting, self._version, str(error))
        return Health(True, running, waiting, self._version, "paused" if self._paused else "")

    async def close(self) -> None:
        """Ends vLLM; requests in flight fail with :class:`RelaxError`."""
        self._fail("the vllm engine is closed")
        if self._worker is not None:
            await self._worker
        vllm, self._vllm = self._vllm, None
        if vllm is not None:
            await self._on_thread(vllm.shutdown)
        self._thread.shutdown()

    async def _serve(self) -> None:
        """Runs one step after the other."""
        try:
            while not self._failure:
                if self._blocked or not self._in_flight:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                async with self._turn:
                    if not self._blocked:
                        await self._step()
        finally:
            self._fail("the vllm engine has stopped")

    async def _step(self) -> None:
        added = [each for each in self._in_flight.values() if each.request_id not in self._running]
        self._running |= {each.request_id: each for each in added}
        forgotten, self._forgotten = self._forgotten, []
        try:
            advances = await self._on_thread(lambda: self._advance(forgotten, added))
        except Exception as error:
            logger.exception("vLLM failed")
            self._context.count("engine_errors", 1)
            self._fail(f"vLLM failed: {type(error).__name__}: {error}")
            return
        for advance in advances:
            if advance.request_id in self._running:
                self._take(self._running[advance.request_id], advance)

    def _advance(self, forgotten: Sequence[str], added: Sequence[Trajectory]) -> list[Advance]:
        """On vLLM's thread."""
        assert self._vllm is not None
        self._vllm.abort(forgotten)
        for trajectory in added:
            self._vllm.add(trajectory)
        return self._vllm.step()

    def _take(self, trajectory: Trajectory, advance: Advance) -> None:
        trajectory.extend(advance.token_ids, advance.logprobs, self._version)
        key = trajectory.request.key
        if not all(map(math.isfinite, advance.logprobs)):
            weights = f"weights of version {self._version}"
            self._end(trajectory, RelaxError(f"request {key!r}: the logits of a token are not finite ({weights})"))
        elif advance.finished is not None:
            del self._running[trajectory.request_id]
            reason = STOP_REASONS.get(advance.finished)
            error = RelaxError(f"request {key!r}: vLLM ended it by {advance.finished!r}")
            self._end(trajectory, error if reason is None else reason)

    def _end(self, trajectory: Trajectory, outcome: StopReason | RelaxError) -> None:
        """Lets ``generate`` return or raise."""
        self._forget(trajectory)
        if not trajectory.result.done():
            if isinstance(outcome, StopReason):
                trajectory.result.set_result(trajectory.generation(outcome))
            else:
                trajectory.result.set_exception(outcome)

    def _forget(self, trajectory: Trajectory) -> None:
        if self._in_flight.get(trajectory.request.key) is trajectory:
            del self._in_flight[trajectory.request.key]
        if self._running.pop(trajectory.request_id, None) is not None:
            self._forgotten.append(trajectory.request_id)

    def _fail(self, reason: str) -> None:
        """For good: all requests fail, now and later."""
        self._failure = self._failure or reason
        for trajectory in list(self._in_flight.values()):
            self._end(trajectory, RelaxError(f"request {trajectory.request.key!r}: {self._failure}"))
        self._wake.set()

    def _take_over(self, manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        """On vLLM's thread, so that weights and version change together even if the caller stops waiting."""
        vllm = self._loaded()
        assert self._inventory is not None
        if manifest.version <= self._version:
            raise WeightSyncError(f"version {manifest.version} does not come after version {self._version}")
        if "weights" in self._released:
            raise WeightSyncError(f"version {manifest.version}: the weights are released; restore comes first")
        arrived = self._inventory.verified(manifest, buckets)
        changed = self._inventory.changed(manifest)
        self._weightless = True
        try:
            vllm.reload({name: tensor for name, tensor in arrived.items() if name not in self._inventory.tied})
        except Exception as error:
            raise WeightSyncError(f"version {manifest.version}: vLLM failed to load it: {error}") from error
        self._inventory = self._inventory.after(manifest)
        self._version = manifest.version
        self._weightless = False
        return Acknowledgement(manifest.version, frozenset(arrived), changed)

    @property
    def _blocked(self) -> bool:
        """Whether no token may be computed now."""
        return bool(self._failure or self._paused or self._halts or self._released or self._weightless)

    @contextlib.asynccontextmanager
    async def _halted(self) -> AsyncIterator[None]:
        """Keeps vLLM from stepping; entered when the present step has ended."""
        self._halts += 1
        try:
            async with self._turn:
                yield
        finally:
            self._halts -= 1
            self._wake.set()

    def _loaded(self) -> InProcessVLLM:
        if self._failure:
            raise RelaxError(self._failure)
        if self._vllm is None:
            raise RelaxError("the vllm engine was not started")
        return self._vllm

    def _usable(self) -> InProcessVLLM:
        """vLLM, if it has weights to answer a request with."""
        vllm = self._loaded()
        if self._released:
            raise RelaxError(
                f"the vllm engine has released its {' and '.join(sorted(self._released))}, in name only: "
                "vLLM keeps the memory"
            )
        if self._weightless:
            raise RelaxError("the vllm engine has no weights; they must be published anew")
        return vllm

    async def _on_thread(self, function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

"""Any engine, run in a process of its own."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from relax_core.api.context import Context
from relax_core.api.engine import Engine, GenerateRequest, Generation, Health
from relax_core.api.errors import DeadlineExceeded, RelaxError
from relax_core.api.weights import Acknowledgement, Bucket, Manifest, SharedBuckets
from relax_core.config.selection import Selected
from relax_core.engines.process.child_process import CALL_SECONDS, ChildProcess
from relax_core.engines.process.media import SentMedia
from relax_core.engines.process.protocol import Answer, Count, Progress, Sent, Setup
from relax_core.weights.shared_memory import SharedWeights, anonymous_file


class ProcessEngine(Engine):
    """Runs any engine in a process of its own, which does not outlive this one, however this one ends.

    Calls are answered concurrently. Those made in one turn of the event loop enter the engine before its next step.

    Args:
        selected: The engine.
        context: Its context.
        start_timeout: Seconds for the process to start and to load the model.
        threads: Intra-op threads of torch in the process; 0 leaves torch's default.
    """

    def __init__(self, selected: Selected, context: Context, start_timeout: float = 600.0, threads: int = 0) -> None:
        self._setup = Setup(selected, replace(context, count=Context.count), threads)
        self._count = context.count
        self._start_timeout = start_timeout
        self._child: ChildProcess | None = None
        self._shared: SharedWeights | None = None
        self._media = SentMedia()
        self._updating = asyncio.Lock()
        self._sent: tuple[Manifest, Sent] | None = None
        self._version = 0

    async def start(self) -> None:
        """Starts the process and in it the engine.

        Raises:
            DeadlineExceeded: It took longer than ``start_timeout``.
            RelaxError: What the engine raised; see :class:`relax_core.engines.process.protocol.Failure`.
        """
        self._shared = SharedWeights(anonymous_file())
        try:
            self._child = await ChildProcess.start(self._shared.descriptor, self._note)
            self.capabilities = await self._child.ask("start", self._setup, seconds=self._start_timeout)
        except BaseException as error:
            if self._child is not None:
                await self._child.end(f"the engine process did not start: {error}")
            self._shared.close()
            raise

    async def generate(self, request: GenerateRequest) -> Generation:
        """See :meth:`Engine.generate`."""
        with self._media.sent(request.media, self._running):
            keys = [medium.key for medium in request.media]
            generation: Generation = await self._running.call("generate", replace(request, media=()), keys)
        return generation

    async def abort(self, keys: Sequence[str] | None = None) -> None:
        """See :meth:`Engine.abort`."""
        await self._running.ask("abort", keys)

    async def pause(self) -> None:
        """See :meth:`Engine.pause`."""
        await self._running.ask("pause")

    async def resume(self) -> None:
        """See :meth:`Engine.resume`."""
        await self._running.ask("resume")

    async def receive(self, manifest: Manifest, buckets: Iterable[Bucket]) -> None:
        """See :meth:`Engine.receive`. The tensors are copied once, into memory that both processes see; buckets which
        the process can read by itself are not."""
        await self._exclusively("receive", manifest, buckets)

    async def update(self, manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        """See :meth:`Engine.update`; the tensors are copied as by :meth:`receive`, if they have not been."""
        acknowledgement: Acknowledgement = await self._exclusively("update", manifest, buckets)
        self._version = acknowledgement.version
        return acknowledgement

    async def release(self, what: frozenset[str] = frozenset({"weights", "cache"})) -> None:
        """See :meth:`Engine.release`."""
        await self._running.ask("release", what)

    async def restore(self) -> None:
        """See :meth:`Engine.restore`."""
        await self._running.ask("restore")

    async def health(self) -> Health:
        """That of the engine; unhealthy when its process cannot be asked."""
        try:
            health: Health = await self._running.ask("health")
        except RelaxError as error:
            return Health(False, 0, 0, self._version, str(error))
        return health

    async def close(self) -> None:
        """Closes the engine and ends the process; requests in flight fail with :class:`RelaxError`."""
        try:
            if self._child is not None:
                await self._child.close()
        finally:
            async with self._updating:
                if self._shared is not None:
                    self._shared.close()

    def _note(self, message: Answer | Progress | Count) -> None:
        if isinstance(message, Count):
            self._count(message.name, message.amount)
        else:
            self.generated_tokens = message.generated_tokens

    async def _exclusively(self, method: str, manifest: Manifest, buckets: Iterable[Bucket]) -> Any:
        """One call about weights at a time, to its end: a caller that leaves must not give the memory free while the
        engine reads it."""
        called = asyncio.create_task(self._call(method, manifest, buckets))
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await asyncio.shield(called)
        except TimeoutError:
            raise DeadlineExceeded(f"the engine process took longer than {CALL_SECONDS:g} s to {method}") from None

    async def _call(self, method: str, manifest: Manifest, buckets: Iterable[Bucket]) -> Any:
        async with self._updating:
            child = self._running
            if child.ended:
                raise RelaxError(child.ended)
            sent, self._sent = self._sent, None
            if sent is None or sent[0] is not manifest:
                sent = manifest, await self._written(buckets)
            answer = await child.call(method, manifest, sent[1])
            if method == "receive":
                self._sent = sent
            return answer

    async def _written(self, buckets: Iterable[Bucket]) -> Sent:
        if isinstance(buckets, SharedBuckets):
            return buckets
        assert self._shared is not None
        return await asyncio.to_thread(self._shared.write, buckets)

    @property
    def _running(self) -> ChildProcess:
        if self._child is None:
            raise RelaxError("the engine process was not started")
        return self._child

"""The engine of a run: a rank that holds it, and what everybody else has in its place."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ray.actor import ActorHandle

from relax_core.api.engine import Capability, Engine, GenerateRequest, Generation, Health
from relax_core.api.errors import DeadlineExceeded, RelaxError
from relax_core.api.weights import Acknowledgement, Bucket, Manifest
from relax_core.runtimes.serve.assignment import ENGINE, Assignment
from relax_core.runtimes.serve.proxies import StateClient
from relax_core.transports.ray.calls import ActorLost, acall, find_actor

Outcome = Generation | RelaxError


class EngineRank:
    """Holds the engine, in a process of its own. Every call may be repeated by a caller that has not heard the answer.

    Args:
        assignment: What the run does.
    """

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._engine: Engine | None = None
        self._running: dict[str, asyncio.Task[Outcome]] = {}
        self._acknowledged: Acknowledgement | None = None

    async def start(self) -> frozenset[Capability]:
        """Loads the model and, where there is one, the newest publication: a late engine serves no old weights."""
        from relax_core.runtimes.serve.device import prepare_device

        assignment = self._assignment
        prepare_device(assignment)
        context = assignment.context(StateClient(assignment.run_id).count)
        engine: Engine = assignment.config.engine.build(context)
        await engine.start()
        newest = assignment.config.weight_sync.build(context).newest()
        if newest is not None:
            self._acknowledged = await engine.update(newest.manifest, newest.buckets)
        self._engine = engine
        return engine.capabilities

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Outcome]:
        """One outcome per request; a request of a key that is in flight is the same request once more."""
        for request in requests:
            if request.key not in self._running:
                self._running[request.key] = asyncio.create_task(self._outcome(request))
        tasks = [self._running[request.key] for request in requests]
        outcomes = await asyncio.gather(*(asyncio.shield(task) for task in tasks))
        return list(outcomes)

    async def receive(self, manifest: Manifest, buckets: Iterable[Bucket]) -> None:
        """See :meth:`Engine.receive`; a version that is here already need not be received."""
        if self._acknowledged is None or self._acknowledged.version != manifest.version:
            await self._started.receive(manifest, buckets)

    async def update(self, manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        """See :meth:`Engine.update`; a version that is here already is acknowledged again."""
        if self._acknowledged is None or self._acknowledged.version != manifest.version:
            self._acknowledged = await self._started.update(manifest, buckets)
        return self._acknowledged

    async def abort(self, keys: Sequence[str] | None = None) -> None:
        """See :meth:`Engine.abort`."""
        await self._started.abort(keys)

    async def pause(self) -> None:
        """See :meth:`Engine.pause`."""
        await self._started.pause()

    async def resume(self) -> None:
        """See :meth:`Engine.resume`."""
        await self._started.resume()

    async def release(self, what: frozenset[str]) -> None:
        """See :meth:`Engine.release`."""
        await self._started.release(what)

    async def restore(self) -> None:
        """See :meth:`Engine.restore`."""
        await self._started.restore()

    async def health(self) -> Health:
        """See :meth:`Engine.health`; an engine that is still loading is healthy."""
        if self._engine is None:
            return Health(True, 0, 0, 0, "loading")
        return await self._engine.health()

    async def close(self) -> None:
        """See :meth:`Engine.close`."""
        if self._engine is not None:
            await self._engine.close()

    @property
    def _started(self) -> Engine:
        if self._engine is None:
            raise RelaxError(f"{ENGINE}: still loading")
        return self._engine

    async def _outcome(self, request: GenerateRequest) -> Outcome:
        try:
            return await self._started.generate(request)
        except RelaxError as error:
            return error
        finally:
            del self._running[request.key]


@dataclass
class _Waiting:
    """Requests that were made in one turn of the event loop; they travel in one call."""

    requests: list[GenerateRequest] = field(default_factory=list)
    results: list[asyncio.Future[Generation]] = field(default_factory=list)


class RemoteEngine(Engine):
    """The run's engine, from afar. When its rank dies, calls wait for the next one and are made again.

    Args:
        assignment: What the run does.
        state: Knows which life the rank is in.
        capabilities: What the rank said of itself, for whoever asks.
    """

    def __init__(
        self, assignment: Assignment, state: StateClient, capabilities: frozenset[Capability] = frozenset()
    ) -> None:
        self.capabilities = capabilities
        self._run_id = assignment.run_id
        self._state = state
        self._timeouts = assignment.config.run.timeouts
        self._start_timeout = assignment.config.run.serve.start_timeout
        self._actor: ActorHandle | None = None
        self._life = 0
        self._waiting = _Waiting()
        self._calls: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """The controller has started the rank."""

    async def generate(self, request: GenerateRequest) -> Generation:
        loop = asyncio.get_running_loop()
        if not self._waiting.requests:
            loop.call_soon(self._send)
        result: asyncio.Future[Generation] = loop.create_future()
        self._waiting.requests.append(request)
        self._waiting.results.append(result)
        try:
            return await result
        except asyncio.CancelledError:
            if self._actor is not None:
                self._actor.abort.remote([request.key])
            raise

    async def abort(self, keys: Sequence[str] | None = None) -> None:
        await self._call("abort", keys)

    async def pause(self) -> None:
        await self._call("pause")

    async def resume(self) -> None:
        await self._call("resume")

    async def receive(self, manifest: Manifest, buckets: Iterable[Bucket]) -> None:
        await self._call("receive", manifest, buckets)

    async def update(self, manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        acknowledgement: Acknowledgement = await self._call("update", manifest, buckets)
        return acknowledgement

    async def release(self, what: frozenset[str] = frozenset({"weights", "cache"})) -> None:
        await self._call("release", what)

    async def restore(self) -> None:
        await self._call("restore")

    async def health(self) -> Health:
        health: Health = await self._call("health")
        return health

    async def close(self) -> None:
        """The controller ends the rank."""

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, _Waiting()
        task = asyncio.create_task(self._generate(waiting))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _generate(self, waiting: _Waiting) -> None:
        outcomes: Sequence[Outcome]
        try:
            outcomes = await self._call("generate", waiting.requests, timeout=self._timeouts.generation)
        except RelaxError as error:
            outcomes = [error] * len(waiting.requests)
        for result, outcome in zip(waiting.results, outcomes, strict=True):
            if result.done():
                continue
            if isinstance(outcome, RelaxError):
                result.set_exception(outcome)
            else:
                result.set_result(outcome)

    async def _call(self, method: str, *arguments: Any, timeout: float | None = None) -> Any:
        while True:
            actor = self._actor or await self._next()
            try:
                return await acall(actor, method, *arguments, timeout=timeout or self._timeouts.weight_sync)
            except ActorLost:
                self._actor = None

    async def _next(self) -> ActorHandle:
        """The rank, once it is in a life that this object has not seen end."""
        wait = self._start_timeout
        life: int = await acall(self._state.actor, "life", ENGINE, self._life, wait, timeout=wait + 60)
        if life <= self._life:
            raise DeadlineExceeded(f"{ENGINE} died and did not serve again within {wait:g} s")
        self._life = life
        self._actor = find_actor(ENGINE, self._run_id)
        return self._actor

"""An engine of a run: the rank that holds it, and what everybody else has in its place."""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import ray
from ray.actor import ActorHandle

from relax_core.api.engine import Capability, Engine, GenerateRequest, Generation, Health
from relax_core.api.errors import DeadlineExceeded, RelaxError
from relax_core.api.weights import Acknowledgement, Bucket, Manifest
from relax_core.fleet.member import MemberLost
from relax_core.media.encoders import with_encoders
from relax_core.runtimes.serve.assignment import Assignment, process_name
from relax_core.runtimes.serve.proxies import StateClient, find_state
from relax_core.runtimes.serve.spans import process_timeline
from relax_core.transports.ray.calls import ActorLost, ActorUnavailable, acall, afind_actor

logger = logging.getLogger(__name__)

Outcome = Generation | RelaxError
Result = TypeVar("Result")
RECONNECT_SECONDS = 1.0
"""Before a call is made again to a rank whose connection broke."""


@dataclass
class _Running:
    """A request that the engine has."""

    request: GenerateRequest
    task: asyncio.Task[Outcome]
    aborted: bool = False

    def answers(self, request: GenerateRequest) -> bool:
        """Whether a request of the same key is the same once more, and is to have this one's outcome."""
        asked, asks = replace(self.request, media=()), replace(request, media=())
        return not self.aborted and asked == asks and self.request.prompt == request.prompt


class EngineRank:
    """Holds an engine, in a process of its own. Every call may be repeated by a caller that has not heard the answer.

    The engine serves weights that were published, and no others: until it has some, it is not healthy.

    Args:
        assignment: What the run does.
        name: Of the engine.
    """

    def __init__(self, assignment: Assignment, name: str) -> None:
        self._assignment = assignment
        self._name = name
        self._engine: Engine | None = None
        self._running: dict[str, _Running] = {}
        self._acknowledged: Acknowledgement | None = None
        self._released = False

    async def start(self) -> frozenset[Capability]:
        """Loads the model and, where there is one, the newest publication: a late engine serves no old weights."""
        from relax_core.runtimes.serve.device import prepare_device

        assignment = self._assignment
        prepare_device(assignment)
        self._timeline = process_timeline(assignment.directory, self._name)
        self._state = await find_state(assignment.run_id, assignment.config.run.serve.start_timeout)
        context = assignment.context(self._state.count)
        engine: Engine = assignment.config.engine.build(with_encoders(context, assignment.config.encoders))
        await engine.start()
        newest = assignment.config.weight_sync.build(context).newest()
        if newest is not None:
            self._acknowledged = await engine.update(newest.manifest, newest.buckets)
        self._engine = engine
        return engine.capabilities

    async def generate(self, requests: Sequence[GenerateRequest]) -> tuple[list[Outcome], int]:
        """One outcome per request, and the engine's generated tokens.

        A request that is in flight is not made once more. Another one with its key is from somebody who has taken the
        place of whoever made it, and knows nothing of it: it is ended first.
        """
        with self._timeline.span("engine", "generate", requests=len(requests)):
            outcomes = await asyncio.gather(*(self._answer(request) for request in requests))
        return outcomes, self._started.generated_tokens

    async def receive(self, manifest: Manifest, buckets: Iterable[Bucket]) -> None:
        """See :meth:`Engine.receive`; of a version that is here already nothing is kept."""
        with self._timeline.span("engine", "receive", version=manifest.version):
            if self._acknowledged is None or self._acknowledged.version != manifest.version:
                await self._or_end(manifest, self._started.receive(manifest, buckets))
            else:
                # Whoever broadcasts waits until all have read; a failure is theirs to tell.
                with suppress(RelaxError):
                    await asyncio.to_thread(deque, buckets, 0)

    async def update(self, manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        """See :meth:`Engine.update`; a version that is here already is acknowledged again."""
        if self._acknowledged is None or self._acknowledged.version != manifest.version:
            with self._timeline.span("engine", "update", version=manifest.version):
                self._acknowledged = await self._or_end(manifest, self._started.update(manifest, buckets))
        return self._acknowledged

    async def abort(self, keys: Sequence[str] | None = None) -> None:
        """See :meth:`Engine.abort`. Whoever makes one of these requests from now on wants it made anew."""
        for key in self._running if keys is None else self._running.keys() & set(keys):
            self._running[key].aborted = True
        await self._started.abort(keys)

    async def pause(self) -> None:
        """See :meth:`Engine.pause`."""
        await self._started.pause()

    async def resume(self) -> None:
        """See :meth:`Engine.resume`."""
        await self._started.resume()

    async def release(self, what: frozenset[str]) -> None:
        """See :meth:`Engine.release`."""
        self._released = True
        if "weights" in what:
            self._acknowledged = None
        await self._started.release(what)

    async def restore(self) -> None:
        """See :meth:`Engine.restore`."""
        await self._started.restore()
        self._released = False

    async def health(self) -> tuple[Health, int]:
        """See :meth:`Engine.health`, and the engine's generated tokens."""
        if self._engine is None:
            return Health(False, 0, 0, 0, "is still loading"), 0
        health = await self._engine.health()
        if health.healthy and self._lacking:
            health = replace(health, healthy=False, detail=self._lacking)
        return health, self._engine.generated_tokens

    async def trouble(self) -> str:
        """Why the engine will never serve again; empty while it serves, or will when it is given what it lacks."""
        if self._lacking:
            return ""
        health = await self._started.health()
        # It may have been released while it was asked.
        return "" if health.healthy or self._lacking else health.detail or "is not healthy"

    async def close(self) -> None:
        """See :meth:`Engine.close`."""
        if self._engine is not None:
            await self._engine.close()

    async def _or_end(self, manifest: Manifest, taking: Coroutine[Any, Any, Result]) -> Result:
        """What the engine makes of a publication. One that cannot take it is of no use: the rank ends, and another
        begins with the newest."""
        try:
            return await taking
        except RelaxError as error:
            logger.exception("%s ends: it does not take version %d", self._name, manifest.version)
            with suppress(ActorLost):  # without a state the rank must end all the same
                await self._state.ask("tell", "event", "engine_failed", f"{self._name}: {error}")
            ray.actor.exit_actor()
            raise  # not reached: the line above ends the process

    @property
    def _started(self) -> Engine:
        if self._engine is None:
            raise RelaxError(f"{self._name}: still loading")
        return self._engine

    @property
    def _lacking(self) -> str:
        """What keeps a sound engine from serving; empty where nothing does."""
        if self._released:
            return "has released its memory"
        return "waits for weights" if self._acknowledged is None else ""

    async def _answer(self, request: GenerateRequest) -> Outcome:
        while (running := self._running.get(request.key)) is not None and not running.answers(request):
            try:
                await self._end(running)
            except RelaxError as error:
                return error
        if running is None:
            running = self._running[request.key] = _Running(request, asyncio.create_task(self._outcome(request)))
        return await asyncio.shield(running.task)

    async def _end(self, running: _Running) -> None:
        """Returns when the engine does not have a request any more.

        Raises:
            DeadlineExceeded: It has not let go of it in time.
        """
        await self.abort([running.request.key])
        seconds = self._assignment.config.run.timeouts.weight_sync  # while it takes weights over it ends nothing
        await asyncio.wait({running.task}, timeout=seconds)
        if not running.task.done():
            raise DeadlineExceeded(f"{self._name}: request {running.request.key!r} has not ended within {seconds:g} s")

    async def _outcome(self, request: GenerateRequest) -> Outcome:
        try:
            engine = self._started
            if self._lacking:
                raise RelaxError(f"{self._name} {self._lacking}")
            return await engine.generate(request)
        except RelaxError as error:
            return error
        finally:
            del self._running[request.key]


@dataclass
class _Waiting:
    """Requests of one prompt that were made in one turn of the event loop; they travel in one call."""

    requests: list[GenerateRequest] = field(default_factory=list)
    results: list[asyncio.Future[Generation]] = field(default_factory=list)


class RemoteEngine(Engine):
    """An engine of the run, from afar.

    When its rank dies, calls of the patient wait for the next one and are made again. Those of others fail at once:
    they know of another engine.

    Args:
        assignment: What the run does.
        state: Knows which life the rank is in.
        name: Of the engine.
        capabilities: What the rank said of itself, for whoever asks.
        patient: Whether a call waits for the rank's next life.
    """

    def __init__(
        self,
        assignment: Assignment,
        state: StateClient,
        name: str,
        capabilities: frozenset[Capability] = frozenset(),
        patient: bool = True,
    ) -> None:
        self.capabilities = capabilities
        self._run_id = assignment.run_id
        self._state = state
        self._name = name
        self._timeouts = assignment.config.run.timeouts
        self._start_timeout = assignment.config.run.serve.start_timeout if patient else 0.0
        self._rank_timeout = assignment.config.run.serve.rank_timeout
        self._patient = patient
        self._actor: ActorHandle | None = None
        self._life = 0
        self._generated: dict[int, int] = {}
        self._waiting: dict[tuple[tuple[int, ...], tuple[str, ...]], _Waiting] = {}
        self._calls: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """The controller has started the rank."""

    async def generate(self, request: GenerateRequest) -> Generation:
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._send)
        result: asyncio.Future[Generation] = loop.create_future()
        together = self._waiting.setdefault(request.prompt, _Waiting())
        together.requests.append(request)
        together.results.append(result)
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
        """That of the engine; of one whose rank is dead the patient hear in its next life, others that it is."""
        try:
            health, tokens = await self._call("health", timeout=self._rank_timeout)
        except ActorLost as error:
            return Health(False, 0, 0, 0, str(error))
        self._count_tokens(tokens)
        assert isinstance(health, Health)
        return health

    async def close(self) -> None:
        """The controller ends the rank."""

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for together in waiting.values():
            task = asyncio.create_task(self._generate(together))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    async def _generate(self, waiting: _Waiting) -> None:
        outcomes: Sequence[Outcome]
        try:
            outcomes, tokens = await self._call("generate", waiting.requests, timeout=self._timeouts.generation)
            self._count_tokens(tokens)
        except ActorLost as error:
            outcomes = [error if self._patient else MemberLost(str(error))] * len(waiting.requests)
        except RelaxError as error:
            outcomes = [error] * len(waiting.requests)
        for result, outcome in zip(waiting.results, outcomes, strict=True):
            if result.done():
                continue
            if isinstance(outcome, RelaxError):
                result.set_exception(outcome)
            else:
                result.set_result(outcome)

    def _count_tokens(self, in_this_life: int) -> None:
        self._generated[self._life] = in_this_life
        self.generated_tokens = sum(self._generated.values())

    async def _call(self, method: str, *arguments: Any, timeout: float | None = None) -> Any:
        while True:
            if self._actor is None:
                await self._next_life()
            try:
                self._actor = self._actor or await afind_actor(process_name(self._name, self._life), self._run_id)
                return await acall(self._actor, method, *arguments, timeout=timeout or self._timeouts.weight_sync)
            except ActorUnavailable:
                if not self._patient:
                    raise
                await asyncio.sleep(RECONNECT_SECONDS)
            except ActorLost:
                self._actor = None
                if not self._patient:
                    raise

    async def _next_life(self) -> None:
        """Returns when the rank is in a life that this object has not seen end.

        Raises:
            ActorLost: It is in none, and this object does not wait for one; or the state of the run is gone.
            DeadlineExceeded: None has begun in time.
        """
        wait = self._start_timeout
        life: int = await self._state.ask("life", self._name, self._life, wait, wait=wait)
        if life <= self._life:
            late = DeadlineExceeded if self._patient else ActorLost
            raise late(f"{self._name} is dead, and its next life has not begun within {wait:g} s")
        self._life = life

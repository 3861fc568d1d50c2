"""Several engines that look like one."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from relax_core.api.engine import Engine, GenerateRequest, Generation, Health
from relax_core.api.errors import DeadlineExceeded, RelaxError, WeightSyncError
from relax_core.api.rows import StopReason
from relax_core.api.weights import Acknowledgement, Bucket, Manifest
from relax_core.engines.requests import restricts
from relax_core.fleet.member import Member, MemberLost
from relax_core.fleet.routing import Router

CLOSED = "the fleet is closed"


@dataclass(frozen=True)
class Waits:
    """How long a fleet waits, in seconds.

    Args:
        answer: For an engine to say how it is.
        control: For an engine to pause, to take weights over, and the like.
        engine: For any engine, while none may have requests.
        pulse: Between two looks at an engine.
    """

    answer: float
    control: float
    engine: float
    pulse: float = 1.0


class Fleet(Engine):
    """Engines as a pool. A request whose engine is lost is made again elsewhere: under the same weights and with the
    same seed its answer is the same.

    An engine is given requests while it says that it is healthy and has the newest weights of all. One that stops
    answering, refuses a publication or has missed one stays, without requests, until it says so again.

    Args:
        engines: By name, at least one.
        waits: Deadlines.
        bound: Requests that an engine may have at once; the others wait here. 0: any number.
        tell: Hears :meth:`metrics` after every look at an engine.
        count: Adds to a counter of the run.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        waits: Waits,
        bound: int = 0,
        tell: Callable[[Mapping[str, float]], Awaitable[None]] | None = None,
        count: Callable[[str, int], None] = lambda name, amount: None,
    ) -> None:
        self._members = [Member(name, engine, waits.answer) for name, engine in engines.items()]
        self._router = Router(self._members, bound)
        self._waits = waits
        self._tell = tell
        self._count = count
        self._watches: list[asyncio.Task[None]] = []
        self._in_flight: set[str] = set()
        self._aborted: set[str] = set()
        self._paused = self._closed = False
        self._admitted_at = 0.0

    @property
    def generated_tokens(self) -> int:  # type: ignore[override]  # those of all engines
        """See :attr:`Engine.generated_tokens`."""
        return sum(member.engine.generated_tokens for member in self._members)

    async def start(self) -> None:
        """Starts every engine; what all of them can do, the fleet can.

        Raises:
            RelaxError: No engine started; that of the first.
        """
        started = await self._each("start", lambda engine: engine.start(), self._waits.engine)
        self.capabilities = reduce(frozenset.intersection, (member.engine.capabilities for member in started))
        await self._look()
        self._admitted_at = time.monotonic()
        self._watches = [asyncio.create_task(self._watch(member)) for member in self._members]

    async def generate(self, request: GenerateRequest) -> Generation:
        """See :meth:`Engine.generate`.

        Raises:
            DeadlineExceeded: No engine may have requests, for ``waits.engine`` seconds.
            RelaxError: The request is not possible.
        """
        if request.key in self._in_flight:
            raise RelaxError(f"request {request.key!r}: another request with this key is in flight")
        self._in_flight.add(request.key)
        try:
            while True:
                self._check_open()
                member = None if request.key in self._aborted else await self._router.place(request)
                if member is None:
                    return _nothing(request)
                generation = await self._generate(member, request)
                if generation is not None:
                    return generation
        finally:
            self._in_flight.discard(request.key)
            self._aborted.discard(request.key)

    async def _generate(self, member: Member, request: GenerateRequest) -> Generation | None:
        """The answer of an engine; ``None`` if the engine is at fault that there is none."""
        try:
            if request.key in self._aborted:  # since it was given to the engine, which has not heard of it yet
                return _nothing(request)
            return await member.generate(request)
        except RelaxError as error:
            self._check_open()
            # An engine that is as it should be has refused the request itself.
            if not isinstance(error, MemberLost) and (await member.look()).healthy:
                raise
            self._count("engine/requests_moved", 1)
            return None
        finally:
            member.leave(request)
            self._router.dispatch()

    async def abort(self, keys: Sequence[str] | None = None) -> None:
        """See :meth:`Engine.abort`. A request whose engine is lost before it hears of this is not made again."""
        self._aborted |= self._in_flight if keys is None else self._in_flight.intersection(keys)
        self._router.abort(self._aborted.__contains__)
        with suppress(RelaxError):  # then no engine is left that would go on with it
            await self._each("abort", lambda engine: engine.abort(keys), self._waits.answer)

    async def pause(self) -> None:
        """See :meth:`Engine.pause`."""
        self._paused = True
        await self._each("pause", lambda engine: engine.pause())

    async def resume(self) -> None:
        """See :meth:`Engine.resume`."""
        self._paused = False
        await self._each("resume", lambda engine: engine.resume())

    async def update(self, manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        """Brings a publication to every engine. One that refuses it, or does not answer, is given no request any more.

        Raises:
            WeightSyncError: Every engine refused it.
        """
        # Buckets that can be read once are kept, where several read them.
        shared = list(buckets) if isinstance(buckets, Iterator) and len(self._members) > 1 else buckets
        taken = await self._each("update", lambda engine: engine.update(manifest, shared))
        for member, acknowledgement in taken.items():
            member.version = acknowledgement.version
        await self._look()
        first, *others = taken.values()
        for other in others:
            if other.version != first.version or other.names != first.names:
                raise WeightSyncError(f"engines acknowledged versions {first.version} and {other.version} of one")
        return Acknowledgement(first.version, first.names, max(each.changed for each in taken.values()))

    async def release(self, what: frozenset[str] = frozenset({"weights", "cache"})) -> None:
        """See :meth:`Engine.release`."""
        await self._each("release", lambda engine: engine.release(what))
        await self._look()

    async def restore(self) -> None:
        """See :meth:`Engine.restore`."""
        await self._each("restore", lambda engine: engine.restore())
        await self._look()

    async def health(self) -> Health:
        """Healthy while an engine may have requests; ``detail`` says what is wrong with each other."""
        if self._closed:
            return Health(False, 0, 0, self._router.newest, CLOSED)
        healths = await self._look()
        running, waiting = sum(each.running for each in healths), sum(each.waiting for each in healths)
        admitted = bool(self._router.admitted)
        return Health(admitted, running, waiting + len(self._router), self._router.newest, self._troubles())

    async def close(self) -> None:
        """See :meth:`Engine.close`."""
        self._closed = True
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        self._router.fail(RelaxError(CLOSED))
        with suppress(RelaxError):  # an engine that cannot be closed is gone
            await self._each("close", lambda engine: engine.close())

    def metrics(self) -> dict[str, float]:
        """By engine: requests and tokens answered for this fleet, requests that wait in the engine, its version."""
        return {
            f"engine/{member.name}/{key}": float(value)
            for member in self._members
            for key, value in (
                ("requests", member.requests),
                ("tokens", member.tokens),
                ("queued", member.queued),
                ("version", member.version),
            )
        }

    async def _watch(self, member: Member) -> None:
        """Looks at an engine again and again; one that returns is given requests at once."""
        while True:
            # After a publication engines are seen one by one; the others are soon seen to have it too.
            behind = not member.trouble and bool(self._router.why_not(member))
            await asyncio.sleep(self._waits.pulse / 20 if behind else self._waits.pulse)
            await self._look_at(member)
            if self._tell is not None:
                with suppress(RelaxError):  # the next look tells it all
                    await self._tell(self.metrics())
            if self._router.admitted:
                self._admitted_at = time.monotonic()
            elif time.monotonic() - self._admitted_at > self._waits.engine:
                seconds = f"{self._waits.engine:g} s"
                self._router.fail(
                    DeadlineExceeded(f"no engine could be given requests for {seconds}: {self._troubles()}")
                )

    async def _look(self) -> list[Health]:
        return await asyncio.gather(*(self._look_at(member) for member in self._members))

    async def _look_at(self, member: Member) -> Health:
        before = member.trouble
        health = await member.look()
        if before and not member.trouble and self._paused:
            # It came back while all others stand still.
            with suppress(RelaxError):
                await member.within(self._waits.control, "pause", member.engine.pause())
        self._router.dispatch()
        return health

    async def _each(
        self, action: str, call: Callable[[Engine], Coroutine[Any, Any, Any]], seconds: float | None = None
    ) -> dict[Member, Any]:
        """Results of a call to every engine, by those which made it; the others are given no request any more.

        Raises:
            RelaxError: No engine made it; that of the first.
        """
        deadline = self._waits.control if seconds is None else seconds
        calls = (member.within(deadline, action, call(member.engine)) for member in self._members)
        results = dict(zip(self._members, await asyncio.gather(*calls, return_exceptions=True), strict=True))
        failed = {member: result for member, result in results.items() if isinstance(result, BaseException)}
        for error in failed.values():
            if len(failed) == len(results) or not isinstance(error, RelaxError):
                raise error
        for member, error in failed.items():
            member.trouble = f"{action}: {error}"
        return {member: result for member, result in results.items() if member not in failed}

    def _troubles(self) -> str:
        troubles = {member.name: self._router.why_not(member) for member in self._members}
        return "; ".join(f"{name} {trouble}" for name, trouble in troubles.items() if trouble)

    def _check_open(self) -> None:
        if self._closed:
            raise RelaxError(CLOSED)


def _nothing(request: GenerateRequest) -> Generation:
    """The answer to a request that was aborted before an engine had it."""
    support = () if restricts(request.sampling) else None
    return Generation(request.key, (), np.zeros(0, np.float32), StopReason.ABORT, (), support)

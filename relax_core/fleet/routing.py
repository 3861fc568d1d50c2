"""Which request goes to which engine, and in which order those go that have to wait."""

import asyncio
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from relax_core.api.engine import GenerateRequest
from relax_core.api.errors import RelaxError
from relax_core.fleet.member import Member


@dataclass(eq=False)
class Waiting:
    """A request without an engine.

    Args:
        request: The request.
        arrival: Counts requests, so that of equal priorities the older goes first.
        place: Becomes the engine's, or ``None`` when the request is aborted first.
    """

    request: GenerateRequest
    arrival: int
    place: asyncio.Future[Member | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Router:
    """Gives requests to the least loaded engine that may have them; those of one prompt stay together.

    Args:
        members: All engines.
        bound: Requests that an engine may have at once; 0: any number.
    """

    def __init__(self, members: Sequence[Member], bound: int = 0) -> None:
        self._members = members
        self._bound = bound
        self._waiting: list[Waiting] = []
        self._arrivals = count()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def newest(self) -> int:
        """The newest version of weights that an engine has acknowledged."""
        return max(member.version for member in self._members)

    def why_not(self, member: Member) -> str:
        """Why an engine may have no request; empty when it may. One with older weights than another has to wait."""
        if not member.trouble and member.version < self.newest:
            return f"has version {member.version} of {self.newest}"
        return member.trouble

    @property
    def admitted(self) -> list[Member]:
        """Engines that may have requests."""
        return [member for member in self._members if not self.why_not(member)]

    async def place(self, request: GenerateRequest) -> Member | None:
        """Waits for an engine, and gives it the request; ``None`` when the request was aborted."""
        waiting = Waiting(request, next(self._arrivals))
        insort(self._waiting, waiting, key=lambda each: (-each.request.priority, each.arrival))
        self.dispatch()
        try:
            return await waiting.place
        except asyncio.CancelledError:
            if waiting.place.done() and not waiting.place.cancelled():
                self._leave(waiting)
            raise
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def dispatch(self) -> None:
        """Places what can be placed; nobody overtakes a request for which there is no room."""
        while self._waiting and (member := self._choose(self._waiting[0].request)) is not None:
            waiting = self._waiting.pop(0)
            if not waiting.place.done():
                member.take(waiting.request)
                waiting.place.set_result(member)

    def abort(self, wanted: Callable[[str], bool]) -> None:
        """Ends requests that wait, by key."""
        for waiting in self._waiting:
            if wanted(waiting.request.key) and not waiting.place.done():
                waiting.place.set_result(None)

    def fail(self, error: RelaxError) -> None:
        """Ends all that wait with an error."""
        for waiting in self._waiting:
            if not waiting.place.done():
                waiting.place.set_exception(error)

    def _leave(self, waiting: Waiting) -> None:
        """A request was given up after it had been given to an engine, which has not heard of it."""
        member = waiting.place.result()
        if member is not None:
            member.leave(waiting.request)
            self.dispatch()

    def _choose(self, request: GenerateRequest) -> Member | None:
        free = [member for member in self.admitted if not self._bound or member.in_flight < self._bound]
        together = [member for member in free if member.prompts[request.prompt]]
        return min(together or free, key=lambda member: (member.load, member.in_flight), default=None)

"""An engine on a clock of its own: whoever tests says when a token is drawn, and of which version."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from relax_core.api.engine import GenerateRequest, Generation, Health
from relax_core.api.rows import StopReason
from tests.roles.still_engine import StillEngine


def token(seed: int, place: int) -> int:
    """The token that a trajectory of this seed has at a place, under any weights."""
    return 40 + (seed // (place + 1) + 7 * place) % 50


def logprob(token_id: int) -> float:
    return -0.25 * (1 + token_id % 7)


@dataclass
class Flight:
    """A request and what it has by now."""

    request: GenerateRequest
    result: asyncio.Future[Generation]
    token_ids: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def draw(self, version: int) -> None:
        self.token_ids.append(token(self.request.seed, self.request.generated + len(self.token_ids)))
        self.versions.append(version)

    def end(self, reason: StopReason, support: bool = False) -> None:
        if self.result.done():
            return
        runs = [list(run) for _, run in itertools.groupby(enumerate(self.versions), key=lambda pair: pair[1])]
        self.result.set_result(
            Generation(
                self.request.key,
                tuple(self.token_ids),
                np.array([logprob(each) for each in self.token_ids], np.float32),
                reason,
                tuple(run[0] for run in runs),
                tuple(np.array([each, each + 100], np.int32) for each in self.token_ids) if support else None,
            )
        )


class Scripted(StillEngine):
    """Draws one token for every request in flight at each :meth:`tick`.

    Args:
        length: Tokens of the whole answer of a request, those before a stop included.
        support: Whether top-p or top-k is set.
    """

    def __init__(self, length: Callable[[GenerateRequest], int], support: bool = False) -> None:
        self._length = length
        self._support = support
        self.version = 0
        self.flights: dict[str, Flight] = {}
        self.requests: list[GenerateRequest] = []

    async def generate(self, request: GenerateRequest) -> Generation:
        assert request.key not in self.flights
        self.requests.append(request)
        flight = self.flights[request.key] = Flight(request, asyncio.get_running_loop().create_future())
        try:
            return await flight.result
        finally:
            del self.flights[request.key]

    async def tick(self, count: int = 1) -> None:
        """Lets everybody see what has happened, then draws, so many times."""
        for _ in range(count):
            await rest()
            for flight in self.flights.values():
                flight.draw(self.version)
                if flight.request.generated + len(flight.token_ids) >= self._length(flight.request):
                    flight.end(StopReason.STOP, self._support)
        await rest()

    async def abort(self, keys: Sequence[str] | None = None) -> None:
        for key in list(self.flights) if keys is None else keys:
            if key in self.flights:
                self.flights[key].end(StopReason.ABORT, self._support)

    async def health(self) -> Health:
        return Health(True, len(self.flights), 0, self.version)


async def rest() -> None:
    """Returns when every task has gone as far as it can."""
    for _ in range(8):
        await asyncio.sleep(0)

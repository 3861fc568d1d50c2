"""Roles that do as they are told, and what stands around them."""

import asyncio
from collections.abc import Awaitable, Callable

from relax_core.dataflow.ledger import Ledger
from relax_core.roles.role import Progress, Role
from relax_core.runtimes.watch import Watch
from relax_core.transports.memory.config import MemoryTransportConfig
from relax_core.transports.memory.transport import MemoryTransport

WORKED, BUSY, IDLE, DONE = Progress.WORKED, Progress.BUSY, Progress.IDLE, Progress.DONE
DEADLINE = 30.0


class Told(Role):
    """Does at each step what ``act`` says."""

    def __init__(self, name: str, act: Callable[[], Progress | Awaitable[Progress]]) -> None:
        self.name = name
        self._act = act
        self.steps: list[Progress] = []
        self.ended = asyncio.Event()
        self.settlings = 0

    async def step(self) -> Progress:
        progress = self._act()
        if not isinstance(progress, Progress):
            progress = await progress
        self.steps.append(progress)
        return progress

    async def settled(self) -> None:
        self.settlings += 1
        await self.ended.wait()


class Belt:
    """Parts on their way through roles: each takes one that the role before it has put down."""

    def __init__(self, parts: int, stations: int) -> None:
        self.waiting = [parts] + [0] * stations
        self.parts = parts

    def role(self, station: int) -> Told:
        def act() -> Progress:
            if self.waiting[station]:
                self.waiting[station] -= 1
                self.waiting[station + 1] += 1
                return WORKED
            return DONE if sum(self.waiting[: station + 1]) == 0 else IDLE

        return Told(f"station {station}", act)

    @property
    def made(self) -> int:
        return self.waiting[-1]


async def nothing() -> None: ...


def watch(limit: int = 5) -> Watch:
    """Sees one trained group, so that an end is no failure."""
    ledger = Ledger(lambda event: None)
    ledger.issued(0, 0, 0)
    ledger.generated(0, 1, 1, [0])
    ledger.trained(0, 1)
    transport = MemoryTransport(MemoryTransportConfig())
    transport.open((), ())
    return Watch(transport, ledger, limit)

"""What a rank does: fetches its rows by id, and puts them through its trainer."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import Column, ColumnSpec, IntArray
from relax_core.api.errors import ConfigError
from relax_core.api.trainer import MicroBatch, Sums, Trainer
from relax_core.api.transport import Lease, Transport
from relax_core.dataflow.batching import UpdatePlan
from relax_core.dataflow.columns import FOR_PEOPLE, MEDIA
from relax_core.dataflow.plan import Plan
from relax_core.media.blobs import MediaOfRows
from relax_core.metrics.timeline import NO_TIMELINE, Timeline
from relax_core.roles.objective import Objective
from relax_core.roles.ranks import Ranks
from relax_core.roles.seen_logprobs import SeenLogprobs

Result = TypeVar("Result")


WEIGHTS = frozenset({"weights"})


@contextmanager
def borrowed(lender: Trainer | None, model: Trainer) -> Iterator[None]:
    """A model that is never trained has its weights on the device, and the lender nothing, while the block runs."""
    if lender is None:
        yield
        return
    lender.release(WEIGHTS | {"optimizer", "gradients"})
    model.restore()
    try:
        yield
    finally:
        model.release(WEIGHTS)
        lender.restore()


@dataclass(frozen=True)
class TrainingRank:
    """One rank's work, in the process that holds its trainer.

    Args:
        plan: Which columns each role reads.
        trainer: Holds the model.
        transport: Rows in and out.
        objective: The loss.
        temperature: Temperature of every log-probability.
        rank: Which of the update's ranks this one is.
        seen: Keeps what the trainer computes; ``None`` keeps nothing.
        timeline: Told when the rank fetched and computed.
        lender: Gives this model its device while it computes; ``None`` where there is room for both.
        media: Fetches those of rows that have any.
    """

    plan: Plan
    trainer: Trainer
    transport: Transport
    objective: Objective
    temperature: float
    rank: int = 0
    seen: SeenLogprobs | None = None
    timeline: Timeline = NO_TIMELINE
    lender: Trainer | None = None
    media: MediaOfRows = field(default_factory=MediaOfRows)

    def __post_init__(self) -> None:
        """Refuses an algorithm that needs more than the trainer computes; a model that borrows its device leaves it."""
        if self.lender is not None:
            self.trainer.release(WEIGHTS)
        for output in sorted(self.plan.requirements.outputs - self.trainer.outputs):
            known = ", ".join(sorted(self.trainer.outputs))
            raise ConfigError(f"algorithm: needs the output {output!r}; {type(self.trainer).__name__} computes {known}")

    def accumulate(self, lease: Lease, update: UpdatePlan, number: int) -> Sums:
        """Adds the gradients of this rank's micro-batches, for the update of that number."""
        batches = self._micro_batches(lease, update)
        with self.timeline.span(lease.consumer, "accumulate"):
            if self.seen is None:
                return self.trainer.accumulate(batches, self.objective)
            self.seen.begin(number)
            return self.seen.accumulate(batches, self.objective, self.trainer.accumulate)

    def forward(self, lease: Lease, update: UpdatePlan, column: ColumnSpec, version: int) -> None:
        """Writes the column for this rank's rows."""
        batches = self._micro_batches(lease, update)
        if not self.trainer.collective:  # otherwise ranks compute together, also those without a row
            batches = [batch for batch in batches if len(batch.table)]
        if not batches:
            return
        with self.timeline.span(lease.consumer, "forward"), borrowed(self.lender, self.trainer):
            computed = self.trainer.forward(batches, frozenset({"logprobs"}))["logprobs"]
        ids = np.concatenate([batch.table.ids for batch in batches])
        if len(ids):
            self.transport.write(ids, [Column(column, computed.values, computed.offsets)], version, lease.attempt > 1)

    def _micro_batches(self, lease: Lease, update: UpdatePlan) -> list[MicroBatch]:
        role = self.plan.role(lease.consumer)
        assert role is not None
        reads = sorted(role.reads - FOR_PEOPLE)
        with self.timeline.span(lease.consumer, "fetch"):
            return [self._micro_batch(lease, update, reads, rows) for rows in update.ranks[self.rank]]

    def _micro_batch(self, lease: Lease, update: UpdatePlan, reads: list[str], rows: IntArray) -> MicroBatch:
        ids = lease.table.ids[rows]
        if MEDIA.name not in reads:
            return update.micro_batch(self.transport.fetch(lease, reads, ids), rows, self.temperature)
        table, media = self.media.fetch(self.transport, lease, reads, ids)
        return replace(update.micro_batch(table, rows, self.temperature), media=media)


class LocalRanks(Ranks):
    """A single rank in this process, where roles are never started anew: no update is asked for twice.

    It computes in a thread of its own, so that the process hears of everything else meanwhile.

    Args:
        rank: The rank.
        before_update: Returns when the weights may change.
        its_turn: Returns when the rank may compute.
    """

    size = 1

    def __init__(
        self,
        rank: TrainingRank,
        before_update: Callable[[], Awaitable[None]] | None = None,
        its_turn: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._rank = rank
        self._before_update = before_update
        self._its_turn = its_turn
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rank")
        self._sums = Sums()
        self.prefers_groups = rank.trainer.prefers_groups

    async def accumulate(self, lease: Lease, update: UpdatePlan, number: int, first: bool) -> None:
        await self._take_turn()
        sums = await self._on_thread(lambda: self._rank.accumulate(lease, update, number))
        self._sums = sums if first else self._sums + sums

    async def apply(self, number: int) -> tuple[Sums, Mapping[str, float]]:
        if self._before_update is not None:
            await self._before_update()
        return self._sums, await self._on_thread(lambda: self._rank.trainer.apply(self._sums.weight))

    async def logprobs(self) -> Mapping[int, npt.NDArray[np.generic]]:
        return {} if self._rank.seen is None else self._rank.seen.logprobs

    async def forward(self, lease: Lease, update: UpdatePlan, column: ColumnSpec, version: int) -> None:
        await self._take_turn()
        await self._on_thread(lambda: self._rank.forward(lease, update, column, version))

    async def _take_turn(self) -> None:
        if self._its_turn is not None:
            await self._its_turn()

    async def _on_thread(self, work: Callable[[], Result]) -> Result:
        """Work that has begun is waited for even by a caller who is being cancelled: nobody else may find the trainer
        in the middle of it."""
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown()

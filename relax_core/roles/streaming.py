"""An actor that computes the gradients of a group as soon as it is ready, instead of waiting for its whole batch."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from relax_core.api.columns import NO_VERSION, Column, IntArray, Table
from relax_core.api.errors import EndOfStream
from relax_core.api.transport import Lease
from relax_core.checkpoint.batches import BatchRecord
from relax_core.dataflow.batching import UpdatePlan
from relax_core.roles.actor import Actor
from relax_core.roles.lease import held
from relax_core.roles.role import Progress


@dataclass(frozen=True)
class Piece:
    """Groups of the present batch whose gradients are there."""

    lease: Lease
    update: UpdatePlan
    record: BatchRecord | None
    seconds: float
    generated: int


class StreamingActor(Actor):
    """One update per batch, its gradients accumulated group by group, its step when the batch is complete.

    Leases are kept until then: whoever looks at the transport in the meantime sees groups that are not trained.

    Args:
        arguments: As of :class:`Actor`.
        grows: Whether a batch may still grow that has so many groups; asked when nothing is ready.
    """

    def __init__(self, *arguments: Any, grows: Callable[[int], bool], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._grows = grows
        self._repeats = True
        """Whether groups that somebody before had may still come: first of all, and one by one, since each is either
        trained already, or of the batch that was begun, or neither."""
        self._pieces: list[Piece] = []
        self._leases = ExitStack()

    async def step(self) -> Progress:
        """Adds what is ready to the batch; makes the update when it is complete or will grow no more."""
        self.wait()
        await self._take_back()
        missing = 1 if self._repeats else self._batch.tasks - self._groups
        try:
            lease = self._transport.take(self.name, 1, missing, self.patience)
        except EndOfStream:
            return Progress.DONE
        if lease is not None:
            self._repeats = lease.attempt > 1
            if self._settled_before(lease):
                return Progress.WORKED
            self._go_on()
            await self._add(lease)
        elif not self._pieces or self._grows(self._groups):
            return self._without_rows()
        if self._groups == self._batch.tasks or lease is None:
            self._go_on()
            await self._complete()
        self.wait()
        return Progress.WORKED

    def _settled_before(self, lease: Lease) -> bool:
        """Whether nothing is to be trained: the groups are trained already, or too old; those of a begun batch never
        are."""
        groups, repeated = set(lease.table.groups.tolist()), lease.attempt > 1
        if repeated and groups <= set(self._batches.finished):
            self._transport.ack(lease)
            return True
        begun = repeated and groups <= set(self._batches.begun)
        if not self._pieces:
            self._begin_with(begun)
        return not begun and self._drop_stale(lease)

    async def close(self) -> None:
        """Gives the batch up; its groups are not trained."""
        self._leases.close()

    @property
    def _groups(self) -> int:
        return sum(len(set(piece.lease.table.groups.tolist())) for piece in self._pieces)

    async def _add(self, lease: Lease) -> None:
        self._leases.enter_context(held(self._transport, lease))
        started, before = time.monotonic(), self._generated()
        update = self._plan_batch(lease.table, self.batches).updates[0]
        with self.timeline.span(self.name, "accumulate"):
            await self._ranks.accumulate(lease, update, self.updates + 1, first=not self._pieces)
        record = self._record(lease)
        tokens = self._generated() - before
        self._pieces.append(Piece(lease, update, record, time.monotonic() - started, tokens))

    async def _complete(self) -> None:
        self.training = True
        pieces, self._pieces = self._pieces, []
        groups = [group for piece in pieces for group in dict.fromkeys(piece.lease.table.groups.tolist())]
        self._batches.begin(groups, self._state_in_batch())
        started = time.monotonic()
        with self.timeline.span(self.name, "update"):
            sums, metrics = await self._ranks.apply(self.updates + 1)
        seconds = time.monotonic() - started + sum(piece.seconds for piece in pieces)
        tokens = sum(piece.generated for piece in pieces)
        table, update = _joined(pieces)
        self._count(sums, metrics, table.select(update.rows), seconds, tokens)
        await self._finish(_record_of(pieces), (update,))
        self._leases.close()
        for piece in pieces:
            self._transport.ack(piece.lease)
        self.training = False


def _joined(pieces: list[Piece]) -> tuple[Table, UpdatePlan]:
    """All pieces as one table and one update on it."""
    starts = np.cumsum([0, *(len(piece.lease.table) for piece in pieces)]).tolist()
    shifted = [
        [tuple(rows + start for rows in rank) for rank in piece.update.ranks]
        for piece, start in zip(pieces, starts[:-1], strict=True)
    ]
    ranks = tuple(sum(parts, ()) for parts in zip(*shifted, strict=True))
    scales = [
        np.ones(len(piece.lease.table), np.float32) if piece.update.scale is None else piece.update.scale
        for piece in pieces
    ]
    update = UpdatePlan(
        ranks,
        np.concatenate([piece.update.group_rows for piece in pieces]),
        np.concatenate([piece.update.group_tokens for piece in pieces]),
        np.concatenate(scales) if any(piece.update.scale is not None for piece in pieces) else None,
    )
    return _tables_joined([piece.lease.table for piece in pieces]), update


def _tables_joined(tables: list[Table]) -> Table:
    first, known = tables[0], sorted({name for table in tables for name in table.versions})
    return Table(
        np.concatenate([table.ids for table in tables]),
        np.concatenate([table.groups for table in tables]),
        {name: Column.concat([table[name] for table in tables]) for name in first.columns},
        {name: np.concatenate([_versions(table, name) for table in tables]) for name in known},
    )


def _versions(table: Table, column: str) -> IntArray:
    """Versions of a column's entries; a table of answers without a token knows none."""
    return table.versions.get(column, np.full(len(table), NO_VERSION))


def _record_of(pieces: list[Piece]) -> BatchRecord | None:
    records = [piece.record for piece in pieces if piece.record is not None]
    if not records:
        return None
    media = {key: data for record in records for key, data in record.media.items()}
    return replace(records[0], table=_tables_joined([record.table for record in records]), media=media)

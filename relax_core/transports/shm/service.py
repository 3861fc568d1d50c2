"""What the server does for its ends: the index of a transport whose columns are references to shared memory.

A method that has to wait is a generator: it yields until when, and is resumed then or once anything has changed.
"""

import itertools
import time
from collections.abc import Callable, Collection, Generator, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from relax_core.api.errors import TransportError
from relax_core.dataflow.ids import IdSet
from relax_core.transports.memory.blobs import Blobs
from relax_core.transports.memory.declarations import Declarations
from relax_core.transports.memory.group import Group
from relax_core.transports.memory.index import Held, Index, Taken
from relax_core.transports.memory.schema import Writing
from relax_core.transports.shm.blocks import Arena, Block, End
from relax_core.transports.shm.references import Packed, array_of, group_of, group_state, pieces_state

Waiting = Generator[float, None, Any]
"""Yields times of the monotonic clock, returns the result."""


class Service:
    """The calls that ends may make, by name; the first argument is the end that calls.

    Args:
        declared: Columns and consumers.
        capacity: Bytes of rows and blobs at which ``append`` waits; 0 is unbounded.
        changed: Called when something has happened that a call may wait for.
    """

    def __init__(self, declared: Declarations, capacity: int, changed: Callable[[], None]) -> None:
        self._index: Index[Packed] = Index(declared, capacity, changed)
        self._declared = declared
        self._arenas: WeakValueDictionary[int, Arena] = WeakValueDictionary()
        self._keys = itertools.count()
        self.calls: dict[str, Callable[..., Any]] = {
            call.__name__: call
            for call in (
                *(self.append, self.write, self.close_group, self.drop, self.finish),
                *(self.take, self.fetch, self.renew, self.ack, self.nack, self.reclaim),
                *(self.hold_blob, self.put_blob, self.get_blob),
                *(self.snapshot, self.restore, self.depth),
            )
        }

    def add_arena(self, end: End, descriptor: int, nbytes: int) -> int:
        """Takes over the file of an arena that the end will allocate in; returns its key."""
        key = next(self._keys)
        self._arenas[key] = end.arenas[key] = Arena(key, descriptor, nbytes, end)
        return key

    def arena(self, end: End, key: int) -> Arena:
        """The arena, which the end is going to map."""
        if key not in self._arenas:
            raise TransportError(f"there is no arena {key}")
        self._arenas[key].readers.add(end)
        return self._arenas[key]

    def append(
        self,
        end: End,
        group: int,
        rows: int,
        entries: Any,
        version: int | None,
        timeout: float,
        close: bool,
        repeat: bool,
    ) -> list[int] | Waiting:
        """First and last place of the rows, the latter not included."""
        known = self._entries(end, entries)
        places = self._index.append(group, rows, known, version, close, repeat)
        if places is None:
            return self._append_later(time.monotonic() + timeout, group, rows, known, version, close, repeat)
        return [places.start, places.stop]

    def _append_later(self, deadline: float, group: int, rows: int, entries: Packed, *how: Any) -> Waiting:
        places = None
        while places is None:
            if time.monotonic() >= deadline:
                raise self._index.no_room(group, entries.nbytes)
            yield deadline
            places = self._index.append(group, rows, entries, *how)
        return [places.start, places.stop]

    def write(self, end: End, writings: Sequence[Any], version: int | None, repeat: bool) -> None:
        self._index.write(
            [
                Writing(group, np.frombuffer(places, np.int64), self._entries(end, entries))
                for group, places, entries in writings
            ],
            version,
            repeat,
        )

    def close_group(self, end: End, group: int) -> None:
        self._index.close_group(group)

    def drop(self, end: End, groups: Sequence[int]) -> None:
        self._index.drop(groups)

    def finish(self, end: End) -> None:
        self._index.finish()

    def take(
        self, end: End, consumer: str, minimum: int, maximum: int, timeout: float, seconds: float
    ) -> list[Any] | Waiting:
        """Key of the lease, attempt, and the groups with their light columns; ``None`` for nothing yet."""
        taken = self._index.take(consumer, minimum, maximum, seconds)
        if taken is None:
            return self._take_later(time.monotonic() + timeout, end, consumer, minimum, maximum, seconds)
        return self._handed_out(end, consumer, taken)

    def _take_later(
        self, deadline: float, end: End, consumer: str, minimum: int, maximum: int, seconds: float
    ) -> Waiting:
        reclaims = self._index.reclaims[consumer]
        taken = None
        while taken is None:
            now = time.monotonic()
            if now >= deadline or self._index.reclaims[consumer] != reclaims:
                return None
            yield min(deadline, now + self._index.seconds_until_expiry())
            taken = self._index.take(consumer, minimum, maximum, seconds)
        return self._handed_out(end, consumer, taken)

    def _handed_out(self, end: End, consumer: str, taken: Taken[Packed]) -> list[Any]:
        told = self._told(end, taken.groups, self._declared.consumers[consumer].light)
        return [taken.key, taken.attempt, told]

    def fetch(self, end: End, lease: str, columns: Sequence[str], groups: Sequence[int] | None) -> list[Any]:
        """The groups of the lease, or those named, with some columns."""
        found = self._index.leased(lease, None if groups is None else set(groups))
        return self._told(end, found, columns)

    def renew(self, end: End, lease: str, seconds: float) -> None:
        self._index.renew(lease, seconds)

    def ack(self, end: End, lease: str) -> None:
        self._index.ack(lease)

    def nack(self, end: End, lease: str) -> None:
        self._index.nack(lease)

    def reclaim(self, end: End, consumer: str) -> None:
        self._index.reclaim(consumer)

    def hold_blob(self, end: End, key: str, group: int) -> bool:
        """See :meth:`relax_core.transports.memory.index.Index.hold_blob`."""
        return self._index.hold_blob(key, group)

    def put_blob(self, end: End, key: str, group: int, arena: int, start: int, nbytes: int) -> None:
        self._index.put_blob(key, self._block(end, arena, start), nbytes, group)

    def get_blob(self, end: End, key: str) -> list[int]:
        """The answer to unpin, arena, start and size."""
        block: Block = self._index.blobs.get(key)
        return [end.pin({block}), block.arena.key, block.start, self._index.blobs.held[key].nbytes]

    def snapshot(self, end: End) -> list[Any]:
        """The answer to unpin and everything there is."""
        held, blobs = self._index.held, self._index.blobs.held
        blocks = {piece.entries.block for group in held.groups.values() for piece in group.written(group.cells)}
        return [
            end.pin(blocks | {blob.data for blob in blobs.values()}),
            [group_state(group, Packed.where) for group in held.groups.values()],
            [
                [key, list(blob.holders), blob.data.arena.key, blob.data.start, blob.nbytes]
                for key, blob in blobs.items()
            ],
            [held.gone.below, list(held.gone.beyond), list(held.dropped), held.finished],
        ]

    def restore(self, end: End, groups: Sequence[Any], blobs: Sequence[Any], rest: Sequence[Any]) -> None:
        """Replaces everything; see :meth:`snapshot`."""
        found: list[Group[Packed]] = [group_of(group, lambda _, state: self._entries(end, state)) for group in groups]
        kept: Blobs[Block] = Blobs()
        for key, holders, arena, start, nbytes in blobs:
            kept.put(key, self._block(end, arena, start), nbytes, holders)
        below, beyond, dropped, finished = rest
        held = Held({group.key: group for group in found}, IdSet(below, beyond), set(dropped), finished)
        self._index.restore(held, kept)

    def depth(self, end: End) -> dict[str, int]:
        """See :meth:`relax_core.api.transport.Transport.depth`."""
        return self._index.depth()

    def _told(self, end: End, groups: Sequence[Group[Packed]], names: Collection[str]) -> list[Any]:
        """The answer to unpin, and some columns of groups."""
        found = [(group, group.written(names)) for group in groups]
        blocks = {piece.entries.block for _, pieces in found for piece in pieces}
        told = [[group.key, group.rows, pieces_state(pieces, group.rows, Packed.where)] for group, pieces in found]
        return [end.pin(blocks), told]

    def _entries(self, end: End, state: Sequence[Any]) -> Packed:
        """Columns that an end has packed into one block of its own."""
        arena, start, places, rows, shared, lengths, nbytes = state
        return Packed(rows, shared, array_of(lengths), nbytes, self._block(end, arena, start), places)

    @staticmethod
    def _block(end: End, arena: int, start: int) -> Block:
        if arena not in end.arenas:
            raise TransportError(f"this process has no arena {arena}")
        return Block(end.arenas[arena], start)

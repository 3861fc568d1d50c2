"""A transport in the memory of one process: its index under one lock, with one condition."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import Column, ColumnSpec, IntArray, Table
from relax_core.api.errors import TransportError
from relax_core.api.transport import Consumer, Lease, Transport
from relax_core.transports.memory.blobs import blob_key
from relax_core.transports.memory.config import MemoryTransportConfig
from relax_core.transports.memory.declarations import Declarations
from relax_core.transports.memory.index import Index
from relax_core.transports.memory.packing import packed
from relax_core.transports.memory.schema import Columns, Writing, row_ids, split
from relax_core.transports.memory.snapshots import restored, snapshot_of
from relax_core.transports.memory.tables import table_of, wanted_groups, wanted_rows


class MemoryTransport(Transport):
    """Rows shared by the threads of one process.

    Arrays are copied on the way in, and are read-only on the way out, so neither side can change what the other sees.

    Args:
        config: Capacity.
        context: Unused.
        clock: Seconds that leases are measured by. Waits for rows or room always run on real time.
    """

    def __init__(
        self, config: MemoryTransportConfig, context: Any = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._capacity = config.capacity_bytes
        self._clock = clock
        self._changed = threading.Condition()
        self._index = self._index_of(Declarations())
        self._opened = False

    def open(self, columns: Sequence[ColumnSpec], consumers: Sequence[Consumer]) -> None:
        if self._opened:
            raise TransportError("the transport is open already")
        self._index = self._index_of(Declarations(columns, consumers))
        self._opened = True

    def _index_of(self, declared: Declarations) -> Index[Columns]:
        return Index(declared, self._capacity, self._changed.notify_all, self._clock)

    # Rows come in.

    def append(
        self,
        group: int,
        columns: Sequence[Column],
        version: int | None = None,
        timeout: float = 0.0,
        close: bool = False,
        repeat: bool = False,
    ) -> IntArray:
        rows, entries = self._index.declared.schema.check_append(group, columns)
        entries = packed(entries)
        deadline = time.monotonic() + timeout
        with self._changed:
            while (places := self._index.append(group, rows, entries, version, close, repeat)) is None:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise self._index.no_room(group, entries.nbytes)
                self._changed.wait(remaining)
        return row_ids(group, places)

    def write(
        self, ids: npt.ArrayLike, columns: Sequence[Column], version: int | None = None, repeat: bool = False
    ) -> None:
        writings = [
            Writing(writing.group, writing.places, packed(writing.entries))
            for writing in split(ids, columns, self._index.declared.schema)
        ]
        with self._changed:
            self._index.write(writings, version, repeat)

    def close_group(self, group: int) -> None:
        with self._changed:
            self._index.close_group(group)

    def drop(self, groups: npt.ArrayLike) -> None:
        keys = np.asarray(groups, np.int64).ravel().tolist()
        with self._changed:
            self._index.drop(keys)

    def finish(self) -> None:
        with self._changed:
            self._index.finish()

    # Groups go out.

    def take(
        self, consumer: str, minimum: int = 1, maximum: int = 1, timeout: float = 0.0, seconds: float = 600.0
    ) -> Lease | None:
        deadline = time.monotonic() + timeout
        with self._changed:
            index, reclaims = self._index, self._index.reclaims[consumer]
            while (taken := index.take(consumer, minimum, maximum, seconds)) is None:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or index.reclaims[consumer] != reclaims:
                    return None
                self._changed.wait(min(remaining, index.seconds_until_expiry()))
        table = table_of(taken.groups, index.declared.light(consumer))
        return Lease(taken.key, consumer, table, seconds, taken.attempt)

    def fetch(self, lease: Lease, columns: Sequence[str], ids: npt.ArrayLike | None = None) -> Table:
        specs = self._index.declared.readable(lease.consumer, columns)
        wanted, keys = wanted_groups(lease, ids)
        with self._changed:
            groups = self._index.leased(lease.key, keys)
        return wanted_rows(table_of(groups, specs), wanted)

    def renew(self, lease: Lease, seconds: float) -> Lease:
        with self._changed:
            self._index.renew(lease.key, seconds)
        return replace(lease, seconds=seconds)

    def ack(self, lease: Lease) -> None:
        with self._changed:
            self._index.ack(lease.key)

    def nack(self, lease: Lease) -> None:
        with self._changed:
            self._index.nack(lease.key)

    def reclaim(self, consumer: str) -> None:
        with self._changed:
            self._index.reclaim(consumer)

    # Blobs.

    def put_blob(self, data: bytes, group: int) -> str:
        key = blob_key(data)
        with self._changed:
            self._index.put_blob(key, bytes(data), len(data), group)
        return key

    def get_blob(self, key: str) -> bytes:
        with self._changed:
            data: bytes = self._index.blobs.get(key)
        return data

    # The whole.

    def snapshot(self) -> Mapping[str, Any]:
        with self._changed:
            return snapshot_of(self._index.declared, self._index.held, self._index.blobs)

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        held, blobs = restored(snapshot, self._index.declared)
        with self._changed:
            self._index.restore(held, blobs)

    def depth(self) -> Mapping[str, int]:
        with self._changed:
            return self._index.depth()

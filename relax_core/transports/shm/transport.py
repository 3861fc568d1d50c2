"""A transport for the processes of one host: columns are copied into shared memory once, and read where they are."""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

from relax_core.api.columns import Column, ColumnSpec, IntArray, Table
from relax_core.api.context import Context
from relax_core.api.errors import TransportError
from relax_core.api.transport import Consumer, Lease, Transport
from relax_core.dataflow.ids import IdSet
from relax_core.transports.memory.blobs import Blobs, blob_key
from relax_core.transports.memory.declarations import Declarations
from relax_core.transports.memory.group import Group
from relax_core.transports.memory.index import Held
from relax_core.transports.memory.packing import layout, put
from relax_core.transports.memory.schema import Columns, row_ids, split
from relax_core.transports.memory.snapshots import restored, snapshot_of
from relax_core.transports.memory.tables import table_of, wanted_groups, wanted_rows, whole_table
from relax_core.transports.shm.arenas import Allocator
from relax_core.transports.shm.config import ShmTransportConfig
from relax_core.transports.shm.link import Files, Link
from relax_core.transports.shm.process import ServerProcess
from relax_core.transports.shm.references import array_state, fill, group_of, group_state
from relax_core.transports.shm.views import Mappings, Pin, Views, mapped


class ShmTransport(Transport):
    """One end of the run's transport; every process of the run builds its own, on one host.

    ``open`` starts the server, which ends with the process that opened it; the others find it by the run's folder. What
    is handed out in one piece, as groups mostly are, is not copied: the arrays are read-only views, and their memory is
    not used again before the last of them is gone.

    Args:
        config: Capacity and deadline.
        context: Names the run and its folder.
    """

    def __init__(self, config: ShmTransportConfig, context: Context) -> None:
        self._capacity = config.capacity_bytes
        self._folder = context.directory.resolve()
        self._link = Link(self._folder, context.run_id, config.call_seconds)
        self._allocator = Allocator(self._register, self._link.freed)
        self._mappings = Mappings(self._find, self._link.unused)
        self.server: ServerProcess | None = None
        """The server, in the process that has opened the transport."""

    def open(self, columns: Sequence[ColumnSpec], consumers: Sequence[Consumer]) -> None:
        if self.server is not None:
            raise TransportError("the transport is open already")
        self.server = ServerProcess(self._folder, Declarations(columns, consumers), self._capacity)
        weakref.finalize(self, self.server.close)

    def close(self) -> None:
        if self.server is not None:
            self.server.close()

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
        rows, entries = self._link.declared.schema.check_append(group, columns)
        arguments = (int(group), rows, self._placed(entries), version, timeout, close, repeat)
        return row_ids(int(group), range(*self._link.call("append", *arguments, wait=timeout)))

    def write(
        self, ids: npt.ArrayLike, columns: Sequence[Column], version: int | None = None, repeat: bool = False
    ) -> None:
        writings = split(ids, columns, self._link.declared.schema)
        states = [[each.group, array_state(each.places), self._placed(each.entries)] for each in writings]
        self._link.call("write", states, version, repeat)

    def close_group(self, group: int) -> None:
        self._link.call("close_group", int(group))

    def drop(self, groups: npt.ArrayLike) -> None:
        self._link.call("drop", np.asarray(groups, np.int64).ravel().tolist())

    def finish(self) -> None:
        self._link.call("finish")

    # Groups go out.

    def take(
        self, consumer: str, minimum: int = 1, maximum: int = 1, timeout: float = 0.0, seconds: float = 600.0
    ) -> Lease | None:
        taken = self._link.call("take", consumer, minimum, maximum, timeout, seconds, wait=timeout)
        if taken is None:
            return None
        key, attempt, told = taken
        return Lease(key, consumer, self._table(told, self._link.declared.light(consumer)), seconds, attempt)

    def fetch(self, lease: Lease, columns: Sequence[str], ids: npt.ArrayLike | None = None) -> Table:
        specs = self._link.declared.readable(lease.consumer, columns)
        wanted, groups = wanted_groups(lease, ids)
        told = self._link.call("fetch", lease.key, list(columns), None if groups is None else list(groups))
        return wanted_rows(self._table(told, specs), wanted)

    def renew(self, lease: Lease, seconds: float) -> Lease:
        self._link.call("renew", lease.key, seconds)
        return replace(lease, seconds=seconds)

    def ack(self, lease: Lease) -> None:
        self._link.call("ack", lease.key)

    def nack(self, lease: Lease) -> None:
        self._link.call("nack", lease.key)

    def reclaim(self, consumer: str) -> None:
        self._link.call("reclaim", consumer)

    # Blobs.

    def put_blob(self, data: bytes, group: int) -> str:
        key = blob_key(data)
        if not self._link.call("hold_blob", key, int(group)):
            self._link.call("put_blob", key, int(group), *self._stored(data))
        return key

    def get_blob(self, key: str) -> bytes:
        pin, *place = self._link.call("get_blob", key)
        return Views(self._mappings, Pin(pin, self._link)).bytes_of(*place)

    # The whole.

    def snapshot(self) -> Mapping[str, Any]:
        pin, groups, kept, (below, beyond, dropped, finished) = self._link.call("snapshot")
        declared, views = self._link.declared, Views(self._mappings, Pin(pin, self._link))
        specs = declared.schema.specs
        held = {
            state[0]: group_of(state, lambda names, where: _viewed(views, where, [specs[name] for name in names]))
            for state in groups
        }
        blobs: Blobs[bytes] = Blobs()
        for key, holders, *place in kept:
            data = views.bytes_of(*place)
            blobs.put(key, data, len(data), holders)
        return snapshot_of(declared, Held(held, IdSet(below, beyond), set(dropped), finished), blobs)

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        held, blobs = restored(snapshot, self._link.declared)
        self._link.call(
            "restore",
            [group_state(group, self._placed) for group in held.groups.values()],
            [[key, list(blob.holders), *self._stored(blob.data)] for key, blob in blobs.held.items()],
            [held.gone.below, list(held.gone.beyond), list(held.dropped), held.finished],
        )

    def depth(self) -> Mapping[str, int]:
        depth: Mapping[str, int] = self._link.call("depth")
        return depth

    # Calls and memory.

    def _table(self, told: Any, specs: Sequence[ColumnSpec]) -> Table:
        pin, states = told
        views = Views(self._mappings, Pin(pin, self._link))
        if len(states) == 1 and len(states[0][2]) == 1:
            key, rows, ((places, picks, version, _, where),) = states[0]
            if places is None and picks is None:
                return whole_table(key, rows, views.columns(where, specs), version)
        wanted = {spec.name: spec for spec in specs}

        def columns(names: Sequence[str], where: Any) -> Columns:
            return _viewed(views, where, [wanted[name] for name in names if name in wanted])

        groups = []
        for key, rows, pieces in states:
            group: Group[Columns] = Group(key)
            group.rows = rows
            fill(group, pieces, columns)
            groups.append(group)
        return table_of(groups, specs)

    def _placed(self, entries: Columns) -> list[Any]:
        """Entries as the server takes them, with their columns in a block of shared memory."""
        columns = list(entries.by_name.values())
        places, size = layout(columns)
        arena, start, memory = self._allocator.allocate(size)
        put(columns, places, memory)
        encoded = msgpack.packb(dict(zip(entries.by_name, places, strict=True)))
        nbytes = sum([place.nbytes for place in places])
        return [arena, start, encoded, entries.rows, entries.shared, array_state(entries.lengths), nbytes]

    def _stored(self, data: bytes) -> tuple[int, int, int]:
        """Arena, start and size of a block with these bytes."""
        arena, start, memory = self._allocator.allocate(len(data))
        memory[: len(data)] = data
        return arena, start, len(data)

    def _register(self, descriptor: int, nbytes: int) -> int:
        key: int = self._link.call("add_arena", nbytes, files=Files(descriptor))
        return key

    def _find(self, key: int) -> memoryview:
        own = self._allocator.memory(key)
        if own is not None:
            return own
        files = Files()
        nbytes = self._link.call("arena", key, files=files)
        return mapped(files.received[0], nbytes)


def _viewed(views: Views, where: Any, specs: Sequence[ColumnSpec]) -> Columns:
    return Columns.of(list(views.columns(where, specs).values()))

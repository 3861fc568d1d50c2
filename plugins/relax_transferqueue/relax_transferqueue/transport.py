"""Rows in the storage units of TransferQueue; which there are, and who may have them, is in the index of the run.

TransferQueue keeps rows of named fields. Here such a row is what one ``append`` or ``write`` brings to one group, and
each field is a column of it from end to end: dense, with its own dtype. What TransferQueue has no notion of (groups,
leases, what was acknowledged, limits, versions) is the index's, which is the same as that of the other transports.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import ray
from ray.actor import ActorHandle

from relax_core.api.columns import Column, ColumnSpec, IntArray, Table
from relax_core.api.context import Context
from relax_core.api.errors import RelaxError
from relax_core.api.transport import Consumer, Lease, Transport
from relax_core.transports.memory.blobs import blob_key
from relax_core.transports.memory.declarations import Declarations
from relax_core.transports.memory.group import Group
from relax_core.transports.memory.index import Taken
from relax_core.transports.memory.schema import Columns, Writing, row_ids, split
from relax_core.transports.memory.snapshots import restored, snapshot_of
from relax_core.transports.memory.tables import table_of, wanted_groups, wanted_rows
from relax_core.transports.ray.calls import find_actor
from relax_core.transports.ray.server import RunServer
from relax_transferqueue.config import TransferQueueTransportConfig
from relax_transferqueue.copies import BLOB, emptied, filled
from relax_transferqueue.index_server import IndexServer
from relax_transferqueue.stored import Found, Stored, fields_of, loaded

if TYPE_CHECKING:
    from relax_transferqueue.queue import Queue


class TransferQueueTransport(Transport):
    """One end of the run's transport; every process of the run builds its own.

    Args:
        config: Capacity, deadline, and whose TransferQueue.
        context: Names the run, and so the partition of its rows.
    """

    def __init__(self, config: TransferQueueTransportConfig, context: Context) -> None:
        self._config = config
        self._run_id = context.run_id
        self._count = context.count
        self._server = RunServer(context.run_id, config.call_seconds)
        self._joining = threading.Lock()
        self._joined: tuple[Declarations, Queue] | None = None
        self._started: list[ActorHandle] = []

    def open(self, columns: Sequence[ColumnSpec], consumers: Sequence[Consumer]) -> None:
        declared = Declarations(columns, consumers)
        self._server.start(IndexServer, declared.state(), self._config.capacity_bytes)
        if self._config.attach:
            self._queue.clear_partition()  # what a run of this name that has died left behind
        else:
            from relax_transferqueue.started import start

            self._started = start(self._run_id, self._config.units)

    def close(self) -> None:
        self._server.close()
        while self._started:
            ray.kill(self._started.pop())
        self._joined = None

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
        rows, entries = self._declared.schema.check_append(group, columns)
        [writing] = self._put([Writing(group, np.arange(rows), entries)])
        arguments = (group, rows, writing.entries, version, timeout, close, repeat)
        places: range = self._ask("append", *arguments, wait=timeout, repeatable=close and repeat)
        return row_ids(group, places)

    def write(
        self, ids: npt.ArrayLike, columns: Sequence[Column], version: int | None = None, repeat: bool = False
    ) -> None:
        writings = self._put(split(ids, columns, self._declared.schema))
        self._ask("write", writings, version, repeat, repeatable=repeat)

    def close_group(self, group: int) -> None:
        self._ask("close_group", group)

    def drop(self, groups: npt.ArrayLike) -> None:
        self._ask("drop", np.asarray(groups, np.int64).ravel().tolist(), repeatable=True)

    def finish(self) -> None:
        self._ask("finish", repeatable=True)

    # Groups go out.

    def take(
        self, consumer: str, minimum: int = 1, maximum: int = 1, timeout: float = 0.0, seconds: float = 600.0
    ) -> Lease | None:
        taken: Taken[Stored] | None = self._server.call(
            "take", consumer, minimum, maximum, timeout, seconds, wait=timeout
        )
        if taken is None:
            return None
        try:
            table = self._table(taken.key, None, taken.groups, self._declared.light(consumer))
        except RelaxError:
            self._server.call("nack", taken.key, repeatable=True)
            raise
        return Lease(taken.key, consumer, table, seconds, taken.attempt)

    def fetch(self, lease: Lease, columns: Sequence[str], ids: npt.ArrayLike | None = None) -> Table:
        specs = self._declared.readable(lease.consumer, columns)
        wanted, keys = wanted_groups(lease, ids)
        table = self._table(lease.key, keys, self._leased(lease.key, keys), specs)
        return wanted_rows(table, wanted)

    def renew(self, lease: Lease, seconds: float) -> Lease:
        self._server.call("renew", lease.key, seconds, repeatable=True)
        return replace(lease, seconds=seconds)

    def ack(self, lease: Lease) -> None:
        self._ask("ack", lease.key)

    def nack(self, lease: Lease) -> None:
        self._server.call("nack", lease.key, repeatable=True)

    def reclaim(self, consumer: str) -> None:
        self._server.call("reclaim", consumer, repeatable=True)

    # Blobs.

    def put_blob(self, data: bytes, group: int) -> str:
        key = blob_key(data)
        if not self._server.call("hold_blob", key, group, repeatable=True):
            row = new_row()
            self._queue.put({row: {BLOB: np.frombuffer(data, np.uint8)}})
            self._ask("put_blob", key, row, len(data), group, repeatable=True)
        return key

    def get_blob(self, key: str) -> bytes:
        row: str = self._server.call("blob_row", key, repeatable=True)
        data: bytes = self._queue.get({row: {BLOB}})[row, BLOB].tobytes()
        self._server.call("blob_row", key, repeatable=True)  # Its last holder has not gone while it was read.
        return data

    # The whole.

    def snapshot(self) -> Mapping[str, Any]:
        declared, seconds = self._declared, self._config.call_seconds
        held, blobs = self._server.call("keep", 2 * seconds, repeatable=True)
        fields = fields_of(held.groups.values(), declared.schema.specs)
        fields |= {blob.data: {BLOB} for blob in blobs.held.values()}
        found = self._queue.get(fields)
        self._ask("let_go", repeatable=True)
        return snapshot_of(declared, *filled(held, blobs, found))

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        held, blobs, rows = emptied(*restored(snapshot, self._declared), new_row)
        self._queue.put(rows)
        self._ask("restore", held, blobs)

    def depth(self) -> Mapping[str, int]:
        depth: Mapping[str, int] = self._server.call("depth", repeatable=True)
        return depth

    # What this end knows of the run.

    @property
    def _declared(self) -> Declarations:
        return self._join()[0]

    @property
    def _queue(self) -> Queue:
        return self._join()[1]

    def _join(self) -> tuple[Declarations, Queue]:
        with self._joining:
            if self._joined is None:
                from relax_transferqueue.queue import Queue
                from relax_transferqueue.started import CONTROLLER, SHARED

                declared = Declarations.of(self._server.call("declared", repeatable=True))
                seconds = self._config.call_seconds
                controller = find_actor(CONTROLLER, SHARED if self._config.attach else self._run_id, seconds)
                self._joined = declared, Queue(controller, self._run_id, seconds, self._count)
            return self._joined

    def _ask(self, method: str, *arguments: Any, wait: float = 0.0, repeatable: bool = False) -> Any:
        """What the index answers; what it no longer needs is cleared."""
        result, garbage = self._server.call(method, *arguments, wait=wait, repeatable=repeatable)
        if garbage:
            self._queue.clear(garbage)
        return result

    def _put(self, writings: Sequence[Writing[Columns]]) -> list[Writing[Stored]]:
        """The same writings once their values are in TransferQueue, each in a row of its own."""
        placed = [(new_row(), writing) for writing in writings]
        rows = {
            row: {name: column.values for name, column in writing.entries.by_name.items()} for row, writing in placed
        }
        try:
            self._queue.put(rows)
        except RelaxError:
            self._queue.clear(list(rows))
            raise
        return [Writing(writing.group, writing.places, Stored.of(writing.entries, row)) for row, writing in placed]

    def _leased(self, lease: str, keys: set[int] | None) -> list[Group[Stored]]:
        groups: list[Group[Stored]] = self._server.call("leased", lease, keys, repeatable=True)
        return groups

    def _table(self, lease: str, only: set[int] | None, groups: list[Group[Stored]], specs: list[ColumnSpec]) -> Table:
        """Columns of leased groups; of those that are still leased when their values have been read.

        TransferQueue gives the place of a row that was cleared to another one, so what was read of a group that has
        been dropped meanwhile may be something else.
        """
        names = [spec.name for spec in specs]
        found: Found = {}
        while wanted := fields_of(groups, names):
            found = self._queue.get(wanted)
            before, groups = len(groups), self._leased(lease, only)
            if len(groups) == before:
                break
        return table_of([loaded(group, names, found) for group in groups], specs)


def new_row() -> str:
    """A key that no row of TransferQueue has had."""
    return uuid.uuid4().hex

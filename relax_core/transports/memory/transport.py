"""A transport in the memory of one process: one lock, one condition, groups as the unit of everything."""

import heapq
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import NO_VERSION, Column, ColumnSpec, IntArray, Table
from relax_core.api.errors import DeadlineExceeded, EndOfStream, LeaseExpired, TransportError
from relax_core.api.transport import Consumer, Lease, Transport
from relax_core.dataflow.ids import IdSet
from relax_core.transports.memory import snapshots
from relax_core.transports.memory.blobs import Blobs, blob_key
from relax_core.transports.memory.config import MemoryTransportConfig
from relax_core.transports.memory.group import PLACE_BITS, Group, table_of
from relax_core.transports.memory.schema import Schema


@dataclass
class Holding:
    """Groups that are out on a lease until ``expires`` on the transport's clock."""

    consumer: str
    groups: list[int]
    expires: float


class MemoryTransport(Transport):
    """Rows shared by the threads of one process.

    Arrays are copied on the way in and on the way out, so neither side can change what the other sees. A group is
    forgotten when its last consumer acknowledges it; without any consumer, when it is closed.

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
        self._schema = Schema(())
        self._consumers: dict[str, Consumer] = {}
        self._ready: dict[str, list[int]] = {}
        self._groups: dict[int, Group] = {}
        self._gone = IdSet()
        self._dropped: set[int] = set()
        self._holdings: dict[str, Holding] = {}
        self._reclaims: Counter[str] = Counter()
        """By consumer; a take that was waiting when it grew has a dead caller."""
        self._leases = 0
        self._blobs = Blobs()
        self._bytes = 0
        self._opened = self._finished = False

    def open(self, columns: Sequence[ColumnSpec], consumers: Sequence[Consumer]) -> None:
        if self._opened:
            raise TransportError("the transport is open already")
        schema = Schema(columns)
        for consumer in consumers:
            for name in sorted(consumer.reads | consumer.light):
                schema.spec(name)
            if not consumer.light <= consumer.reads:
                raise TransportError(
                    f"{consumer.name}: light columns {sorted(consumer.light - consumer.reads)} not in reads"
                )
        self._consumers = {consumer.name: consumer for consumer in consumers}
        if len(self._consumers) != len(consumers):
            raise TransportError(f"a consumer is declared twice among {[consumer.name for consumer in consumers]}")
        self._schema = schema
        self._ready = {name: [] for name in self._consumers}
        self._opened = True

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
        rows = next((len(column) for column in columns if column.spec.level != "group"), 0)
        entries = self._schema.check(columns, rows, 1)
        if not rows:
            raise TransportError(f"append to group {group} without a row")
        entries = entries.cut(0, rows, 0)
        size = entries.bytes
        deadline = time.monotonic() + timeout
        with self._changed:
            if repeat and (known := self._closed_before(group)) is not None:
                return known
            while not self._fits(target := self._writable(group), size):
                self._wait_for_room(f"{size} bytes for group {group}", deadline)
            ids = target.append(rows, entries, NO_VERSION if version is None else version)
            self._groups[group] = target
            self._bytes += size
            if close:
                self._close(target)
        return ids

    def write(
        self, ids: npt.ArrayLike, columns: Sequence[Column], version: int | None = None, repeat: bool = False
    ) -> None:
        index = np.asarray(ids, np.int64)
        order = np.argsort(index, kind="stable")
        index = index[order]
        if (index[1:] == index[:-1]).any():
            raise TransportError("a row is named twice in one write")
        keys, starts, counts = np.unique(index >> PLACE_BITS, return_index=True, return_counts=True)
        entries = self._schema.check(columns, len(index), len(keys)).reorder(order)
        with self._changed:
            parts = []
            for number, (key, start, count) in enumerate(zip(keys.tolist(), starts, counts, strict=True)):
                if key not in self._dropped:
                    group, places = self._known(key), index[start : start + count] - (key << PLACE_BITS)
                    part = entries.cut(start, start + count, number)
                    for cells in group.unwritten(places, part) if repeat else [(places, part)]:
                        group.check_write(*cells)
                        parts.append((group, *cells))
            for group, places, part in parts:
                group.write(places, part, NO_VERSION if version is None else version)
                self._bytes += part.bytes
                if group.closed:
                    self._settle(group, [column.spec.name for column in (*part.rows, *part.shared)])

    def close_group(self, group: int) -> None:
        with self._changed:
            target = self._writable(group)
            if not target.rows:
                raise TransportError(f"group {group} is closed without a row")
            self._close(target)

    def drop(self, groups: npt.ArrayLike) -> None:
        keys = set(np.asarray(groups, np.int64).ravel().tolist())
        with self._changed:
            targets = [self._known(key) for key in sorted(keys) if key not in self._gone]
            for group in targets:
                self._forget(group)
                self._dropped.add(group.key)
            for name, ready in self._ready.items():
                self._ready[name] = [key for key in ready if key not in keys]
                heapq.heapify(self._ready[name])
            for holding in self._holdings.values():
                holding.groups = [key for key in holding.groups if key not in keys]

    def finish(self) -> None:
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    # Groups go out.

    def take(
        self, consumer: str, minimum: int = 1, maximum: int = 1, timeout: float = 0.0, seconds: float = 600.0
    ) -> Lease | None:
        if not 1 <= minimum <= maximum:
            raise TransportError(f"take for {consumer!r}: minimum {minimum} and maximum {maximum} are no range")
        deadline = time.monotonic() + timeout
        with self._changed:
            reclaims = self._reclaims[consumer]
            while not self._enough(consumer, minimum):
                remaining = deadline - time.monotonic()
                if remaining <= 0 or self._reclaims[consumer] != reclaims:
                    return None
                self._changed.wait(min(remaining, self._until_expiry()))
            ready = self._ready[consumer]
            keys = [heapq.heappop(ready) for _ in range(min(maximum, len(ready)))]
            self._leases += 1
            lease_key = f"{consumer}-{self._leases}"
            self._holdings[lease_key] = Holding(consumer, keys, self._clock() + seconds)
            groups = [self._groups[key] for key in keys]
            for group in groups:
                group.attempts[consumer] += 1
            attempt = max(group.attempts[consumer] for group in groups)
        light = [self._schema.specs[name] for name in sorted(self._consumers[consumer].light)]
        return Lease(lease_key, consumer, table_of(groups, light), seconds, attempt)

    def fetch(self, lease: Lease, columns: Sequence[str], ids: npt.ArrayLike | None = None) -> Table:
        """See :meth:`Transport.fetch`. Rows of groups dropped meanwhile are left out.

        Raises:
            LeaseExpired: The lease has run out.
            TransportError: A column that the consumer did not declare to read, or a row that is not the lease's.
        """
        wanted = None if ids is None else np.asarray(ids, np.int64)
        with self._changed:
            keys = self._living(lease).groups
            for name in columns:
                if self._schema.spec(name).name not in self._consumers[lease.consumer].reads:
                    raise TransportError(f"{lease.consumer!r} fetches {name!r}, but does not declare to read it")
            if wanted is not None:
                if (strange := np.setdiff1d(wanted, lease.table.ids)).size:
                    raise TransportError(f"row {strange[0]} is not part of lease {lease.key}")
                named = set((wanted >> PLACE_BITS).tolist())
                keys = [key for key in keys if key in named]
            groups = [self._groups[key] for key in keys]
        table = table_of(groups, [self._schema.specs[name] for name in columns])
        if wanted is None:
            return table
        wanted = wanted[np.isin(wanted, table.ids)]
        return table.select(np.searchsorted(table.ids, wanted))

    def renew(self, lease: Lease, seconds: float) -> Lease:
        with self._changed:
            self._living(lease).expires = self._clock() + seconds
        return replace(lease, seconds=seconds)

    def ack(self, lease: Lease) -> None:
        with self._changed:
            holding = self._living(lease)
            del self._holdings[lease.key]
            for key in holding.groups:
                group = self._groups[key]
                group.acked.add(lease.consumer)
                if len(group.acked) == len(self._consumers):
                    self._forget(group)
            self._changed.notify_all()

    def nack(self, lease: Lease) -> None:
        """See :meth:`Transport.nack`. A lease that has run out has been given back already."""
        with self._changed:
            if lease.key in self._holdings:
                self._give_back(lease.key)

    def reclaim(self, consumer: str) -> None:
        with self._changed:
            self._reclaims[consumer] += 1
            for key in [key for key, holding in self._holdings.items() if holding.consumer == consumer]:
                self._give_back(key)
            self._changed.notify_all()

    # Blobs.

    def put_blob(self, data: bytes) -> str:
        key = blob_key(data)
        with self._changed:
            self._blobs.put(key, bytes(data))
        return key

    def get_blob(self, key: str) -> bytes:
        with self._changed:
            return self._blobs.get(key)

    def release_blob(self, key: str) -> None:
        with self._changed:
            self._blobs.release(key)
            self._changed.notify_all()

    # The whole.

    def snapshot(self) -> Mapping[str, Any]:
        with self._changed:
            return {
                **snapshots.declarations(self._schema.specs.values(), self._consumers.values()),
                **snapshots.rows(self._groups.values(), self._schema.specs.values(), self._consumers),
                **snapshots.blobs(self._blobs),
                "finished": self._finished,
                "gone_below": self._gone.below,
                "gone_beyond": np.array(sorted(self._gone.beyond), np.int64),
                "dropped": np.array(sorted(self._dropped), np.int64),
            }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        declared = snapshots.declarations(self._schema.specs.values(), self._consumers.values())
        for kind, here in declared.items():
            if snapshot[kind] != here:
                raise TransportError(f"the snapshot was taken with other {kind}: {snapshot[kind]}, here {here}")
        groups = snapshots.groups_of(snapshot, self._schema.specs.values(), self._consumers)
        blobs = snapshots.blobs_of(snapshot)
        with self._changed:
            self._groups = {group.key: group for group in groups}
            self._blobs = blobs
            self._bytes = sum(group.bytes for group in groups)
            self._finished = bool(snapshot["finished"])
            self._gone = IdSet(int(snapshot["gone_below"]), snapshot["gone_beyond"].tolist())
            self._dropped = set(snapshot["dropped"].tolist())
            self._holdings.clear()
            self._ready = {name: [] for name in self._consumers}
            for group in groups:
                if group.closed:
                    self._settle(group, group.cells)
            self._changed.notify_all()

    def depth(self) -> Mapping[str, int]:
        with self._changed:
            self._return_expired()
            return {
                "groups": len(self._groups),
                "rows": sum(group.rows for group in self._groups.values()),
                "bytes": self._bytes + self._blobs.bytes,
                **{f"ready/{name}": len(ready) for name, ready in self._ready.items()},
            }

    # Below, the caller holds the lock.

    def _known(self, key: int) -> Group:
        if key not in self._groups:
            fate = "gone" if key in self._gone else "unknown"
            raise TransportError(f"group {key} is {fate}; {len(self._groups)} groups are held")
        return self._groups[key]

    def _writable(self, key: int) -> Group:
        """The open group of that id; a new one, not yet held, where there is none."""
        group = self._groups.get(key)
        if group is None:
            if not 0 <= key < 1 << (63 - PLACE_BITS):
                raise TransportError(f"group id {key} is out of range")
            if key in self._gone:
                raise TransportError(f"group {key} was {'dropped' if key in self._dropped else 'consumed'} already")
            if self._finished:
                raise TransportError(f"group {key} is new, but the stream is finished")
            return Group(int(key))
        if group.closed:
            raise TransportError(f"group {key} is closed")
        return group

    def _closed_before(self, key: int) -> IntArray | None:
        """Row ids of a group that was closed, none where it is gone; ``None`` for one that is open or new."""
        if key in self._gone:
            return np.empty(0, np.int64)
        group = self._groups.get(key)
        if group is None or not group.closed:
            return None
        return np.arange(group.rows) + (key << PLACE_BITS)

    def _close(self, group: Group) -> None:
        group.closed = True
        self._settle(group, group.cells)
        if not self._consumers:
            self._forget(group)

    def _fits(self, group: Group, size: int) -> bool:
        if not self._capacity:
            return True
        if group.bytes + size > self._capacity:
            raise TransportError(
                f"group {group.key} would have {group.bytes + size} bytes; capacity_bytes is {self._capacity}"
            )
        return self._bytes + self._blobs.bytes + size <= self._capacity

    def _wait_for_room(self, what: str, deadline: float) -> None:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            ready = {name: len(keys) for name, keys in self._ready.items()}
            raise DeadlineExceeded(
                f"no room for {what}: {self._bytes} bytes in {len(self._groups)} groups and {self._blobs.bytes} bytes "
                f"in blobs of {self._capacity}; ready groups {ready}, leases {sorted(self._holdings)}"
            )
        self._changed.wait(remaining)

    def _settle(self, group: Group, names: Iterable[str]) -> None:
        group.settle(names)
        for name, consumer in self._consumers.items():
            if name not in group.offered and name not in group.acked and consumer.reads <= group.complete:
                group.offered.add(name)
                heapq.heappush(self._ready[name], group.key)
                self._changed.notify_all()

    def _forget(self, group: Group) -> None:
        del self._groups[group.key]
        self._gone.add(group.key)
        self._bytes -= group.bytes
        self._changed.notify_all()

    def _enough(self, consumer: str, minimum: int) -> bool:
        """Whether a take would get something now; ``EndOfStream`` when it never will."""
        if consumer not in self._consumers:
            raise TransportError(f"unknown consumer {consumer!r}; declared are {sorted(self._consumers)}")
        self._return_expired()
        ready = len(self._ready[consumer])
        if ready >= minimum or not self._finished:
            return ready >= minimum
        left = sum(consumer not in group.acked for group in self._groups.values())
        if left == 0:
            raise EndOfStream(f"the stream is finished and {consumer!r} has acknowledged every group")
        return left == ready

    def _living(self, lease: Lease) -> Holding:
        self._return_expired()
        if lease.key not in self._holdings:
            raise LeaseExpired(f"lease {lease.key} of {lease.seconds:g} s has run out or was settled before")
        return self._holdings[lease.key]

    def _return_expired(self) -> None:
        now = self._clock()
        for key in [key for key, holding in self._holdings.items() if holding.expires <= now]:
            self._give_back(key)

    def _give_back(self, lease_key: str) -> None:
        holding = self._holdings.pop(lease_key)
        for key in holding.groups:
            heapq.heappush(self._ready[holding.consumer], key)
        self._changed.notify_all()

    def _until_expiry(self) -> float:
        first = min((holding.expires for holding in self._holdings.values()), default=math.inf)
        return max(0.001, first - self._clock())

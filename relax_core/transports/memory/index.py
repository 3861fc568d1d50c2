"""Which groups there are, and who may have them: the rules of a transport, whatever holds its columns."""

import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple

from relax_core.api.columns import NO_VERSION
from relax_core.api.errors import DeadlineExceeded, EndOfStream, LeaseExpired, TransportError
from relax_core.dataflow.ids import IdSet
from relax_core.transports.memory.blobs import Blobs
from relax_core.transports.memory.declarations import Declarations
from relax_core.transports.memory.group import Group
from relax_core.transports.memory.schema import PLACE_BITS, E, Writing


@dataclass
class Holding:
    """Groups that are out on a lease until ``expires`` on the clock."""

    consumer: str
    groups: list[int]
    expires: float


class Taken(NamedTuple, Generic[E]):
    """Groups that have just been handed out; see :class:`relax_core.api.transport.Lease`."""

    key: str
    groups: list[Group[E]]
    attempt: int


@dataclass
class Held(Generic[E]):
    """All that is kept of a run's rows; ``gone`` were consumed by everybody or dropped."""

    groups: dict[int, Group[E]]
    gone: IdSet
    dropped: set[int]
    finished: bool = False


class Index(Generic[E]):
    """Groups and leases. It neither waits nor locks: the caller has it to itself, and waits for ``changed``.

    A group is forgotten when its last consumer acknowledges it; without any consumer, when it is closed.

    Args:
        declared: Columns and consumers.
        capacity: Bytes of rows and blobs at which there is no room; 0 is unbounded.
        changed: Called when something has happened that somebody may wait for.
        clock: Seconds that leases are measured by.
    """

    def __init__(
        self,
        declared: Declarations,
        capacity: int,
        changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.declared = declared
        self.held: Held[E] = Held({}, IdSet(), set())
        self.blobs: Blobs = Blobs()
        self.reclaims: Counter[str] = Counter()
        """By consumer; a take that was waiting when it grew has a dead caller."""
        self._capacity = capacity
        self._changed = changed
        self._clock = clock
        self._consumers = declared.consumers
        self._ready: dict[str, list[tuple[bool, int]]] = {name: [] for name in self._consumers}
        self._holdings: dict[str, Holding] = {}
        self._leases = 0
        self._nbytes = 0

    # Rows come in.

    def append(
        self, key: int, rows: int, entries: E, version: int | None, close: bool = False, repeat: bool = False
    ) -> range | None:
        """See :meth:`relax_core.api.transport.Transport.append`. Returns places; ``None`` when there is no room now."""
        if repeat and (known := self._closed_before(key)) is not None:
            return known
        group = self._writable(key)
        nbytes = entries.nbytes
        if not self._fits(group, nbytes):
            return None
        places = group.append(rows, entries, NO_VERSION if version is None else version)
        self.held.groups[key] = group
        self._nbytes += nbytes
        if close:
            self._close(group)
        return places

    def write(self, writings: Sequence[Writing[E]], version: int | None, repeat: bool = False) -> None:
        """See :meth:`relax_core.api.transport.Transport.write`."""
        found = []
        for writing in writings:
            if writing.group not in self.held.dropped:
                group = self._known(writing.group)
                number = NO_VERSION if version is None else version
                found.append((group, writing, group.pieces(writing, number, repeat)))
        for group, writing, pieces in found:
            self._nbytes += group.write(writing, pieces)
            if group.closed:
                self._settle(group, [name for piece in pieces for name in piece.names])

    def close_group(self, key: int) -> None:
        """See :meth:`relax_core.api.transport.Transport.close_group`."""
        group = self._writable(key)
        if not group.rows:
            raise TransportError(f"group {key} is closed without a row")
        self._close(group)

    def drop(self, keys: Iterable[int]) -> None:
        """See :meth:`relax_core.api.transport.Transport.drop`."""
        dropped = set(keys)
        targets = [self._known(key) for key in sorted(dropped) if key not in self.held.gone]
        for group in targets:
            self._forget(group)
            self.held.dropped.add(group.key)
        for name, ready in self._ready.items():
            self._ready[name] = [entry for entry in ready if entry[1] not in dropped]
            heapq.heapify(self._ready[name])
        for holding in self._holdings.values():
            holding.groups = [key for key in holding.groups if key not in dropped]

    def finish(self) -> None:
        """See :meth:`relax_core.api.transport.Transport.finish`."""
        self.held.finished = True
        self._changed()

    def no_room(self, key: int, nbytes: int) -> DeadlineExceeded:
        """The error of an append that found no room in time."""
        ready = {name: len(keys) for name, keys in self._ready.items()}
        return DeadlineExceeded(
            f"no room for {nbytes} bytes for group {key}: {self._nbytes} bytes in {len(self.held.groups)} groups and "
            f"{self.blobs.nbytes} bytes in blobs of {self._capacity}; ready groups {ready}, "
            f"leases {sorted(self._holdings)}"
        )

    # Groups go out.

    def take(self, consumer: str, minimum: int, maximum: int, seconds: float) -> Taken[E] | None:
        """See :meth:`relax_core.api.transport.Transport.take`; ``None`` when there is nothing yet."""
        if not 1 <= minimum <= maximum:
            raise TransportError(f"take for {consumer!r}: minimum {minimum} and maximum {maximum} are no range")
        if not self._enough(consumer, minimum):
            return None
        ready = self._ready[consumer]
        keys = sorted([heapq.heappop(ready)[1] for _ in range(min(maximum, len(ready)))])
        self._leases += 1
        lease_key = f"{consumer}-{self._leases}"
        self._holdings[lease_key] = Holding(consumer, keys, self._clock() + seconds)
        groups = [self.held.groups[key] for key in keys]
        for group in groups:
            group.attempts[consumer] = group.attempts.get(consumer, 0) + 1
        return Taken(lease_key, groups, max([group.attempts[consumer] for group in groups]))

    def leased(self, lease_key: str, only: set[int] | None) -> list[Group[E]]:
        """Groups of a living lease that are still held, or those of them that ``only`` names."""
        keys = self._living(lease_key).groups
        return [self.held.groups[key] for key in keys if only is None or key in only]

    def renew(self, lease_key: str, seconds: float) -> None:
        """See :meth:`relax_core.api.transport.Transport.renew`."""
        self._living(lease_key).expires = self._clock() + seconds

    def ack(self, lease_key: str) -> None:
        """See :meth:`relax_core.api.transport.Transport.ack`."""
        holding = self._living(lease_key)
        del self._holdings[lease_key]
        for key in holding.groups:
            group = self.held.groups[key]
            group.acked.add(holding.consumer)
            if len(group.acked) == len(self._consumers):
                self._forget(group)
        self._changed()

    def nack(self, lease_key: str) -> None:
        """See :meth:`relax_core.api.transport.Transport.nack`. What has run out has been given back already."""
        if lease_key in self._holdings:
            self._give_back(lease_key)

    def reclaim(self, consumer: str) -> None:
        """See :meth:`relax_core.api.transport.Transport.reclaim`."""
        self.reclaims[consumer] += 1
        for key in [key for key, holding in self._holdings.items() if holding.consumer == consumer]:
            self._give_back(key)
        self._changed()

    def seconds_until_expiry(self) -> float:
        """How long nothing comes back by itself."""
        first = min([holding.expires for holding in self._holdings.values()], default=math.inf)
        return max(0.001, first - self._clock())

    # Blobs.

    def hold_blob(self, key: str, group: int) -> bool:
        """Whether a group holds a blob now, or never will: then its bytes need not be brought."""
        return group in self.held.gone or self.blobs.hold(key, group)

    def put_blob(self, key: str, data: Any, nbytes: int, group: int) -> None:
        """See :meth:`relax_core.api.transport.Transport.put_blob`."""
        if group not in self.held.gone:
            self.blobs.put(key, data, nbytes, [group])

    # The whole.

    def restore(self, held: Held[E], blobs: Blobs) -> None:
        """Replaces everything; no consumer has been offered a group of ``held``."""
        self.held, self.blobs = held, blobs
        self._nbytes = sum(group.nbytes for group in held.groups.values())
        self._holdings.clear()
        self._ready = {name: [] for name in self._consumers}
        for group in held.groups.values():
            if group.closed:
                self._settle(group, group.cells)
        self._changed()

    def depth(self) -> dict[str, int]:
        """See :meth:`relax_core.api.transport.Transport.depth`."""
        self._return_expired()
        return {
            "groups": len(self.held.groups),
            "rows": sum([group.rows for group in self.held.groups.values()]),
            "bytes": self._nbytes + self.blobs.nbytes,
            **{f"ready/{name}": len(ready) for name, ready in self._ready.items()},
        }

    def _known(self, key: int) -> Group[E]:
        if key not in self.held.groups:
            fate = "gone" if key in self.held.gone else "unknown"
            raise TransportError(f"group {key} is {fate}; {len(self.held.groups)} groups are held")
        return self.held.groups[key]

    def _writable(self, key: int) -> Group[E]:
        """The open group of that id; a new one, not yet held, where there is none."""
        group = self.held.groups.get(key)
        if group is None:
            if not 0 <= key < 1 << (63 - PLACE_BITS):
                raise TransportError(f"group id {key} is out of range")
            if key in self.held.gone:
                fate = "dropped" if key in self.held.dropped else "consumed"
                raise TransportError(f"group {key} was {fate} already")
            if self.held.finished:
                raise TransportError(f"group {key} is new, but the stream is finished")
            return Group(int(key))
        if group.closed:
            raise TransportError(f"group {key} is closed")
        return group

    def _closed_before(self, key: int) -> range | None:
        """Places of a group that was closed, none where it is gone; ``None`` for one that is open or new."""
        if key in self.held.gone:
            return range(0)
        group = self.held.groups.get(key)
        return range(group.rows) if group is not None and group.closed else None

    def _close(self, group: Group[E]) -> None:
        group.closed = True
        self._settle(group, group.cells)
        if not self._consumers:
            self._forget(group)

    def _fits(self, group: Group[E], size: int) -> bool:
        if not self._capacity:
            return True
        needed = group.nbytes + size + self.blobs.nbytes_of(lambda key: key == group.key)
        if needed > self._capacity:
            raise TransportError(
                f"group {group.key} would have {needed} bytes, its blobs included; capacity_bytes is {self._capacity}"
            )
        # Blobs of groups that wait here for room, too, must not keep each other out.
        blobs = self.blobs.nbytes_of(lambda key: key == group.key or key in self.held.groups)
        return self._nbytes + blobs + size <= self._capacity

    def _settle(self, group: Group[E], names: Iterable[str]) -> None:
        group.settle(names)
        for name, consumer in self._consumers.items():
            if name not in group.offered and name not in group.acked and consumer.reads <= group.complete:
                group.offered.add(name)
                self._offer(group, name)
                self._changed()

    def _offer(self, group: Group[E], consumer: str) -> None:
        """Groups that were handed out before go first: who repeats a batch gets what it had, not what came since."""
        heapq.heappush(self._ready[consumer], (consumer not in group.attempts, group.key))

    def _forget(self, group: Group[E]) -> None:
        del self.held.groups[group.key]
        self.held.gone.add(group.key)
        self._nbytes -= group.nbytes
        self.blobs.leave(group.key)
        self._changed()

    def _enough(self, consumer: str, minimum: int) -> bool:
        """Whether a take would get something now; ``EndOfStream`` when it never will."""
        if consumer not in self._consumers:
            raise TransportError(f"unknown consumer {consumer!r}; declared are {sorted(self._consumers)}")
        self._return_expired()
        ready = len(self._ready[consumer])
        if ready >= minimum or not self.held.finished:
            return ready >= minimum
        left = sum(consumer not in group.acked for group in self.held.groups.values())
        if left == 0:
            raise EndOfStream(f"the stream is finished and {consumer!r} has acknowledged every group")
        return left == ready

    def _living(self, lease_key: str) -> Holding:
        self._return_expired()
        if lease_key not in self._holdings:
            raise LeaseExpired(f"lease {lease_key} has run out or was settled before")
        return self._holdings[lease_key]

    def _return_expired(self) -> None:
        now = self._clock()
        for key in [key for key, holding in self._holdings.items() if holding.expires <= now]:
            self._give_back(key)

    def _give_back(self, lease_key: str) -> None:
        holding = self._holdings.pop(lease_key)
        for key in holding.groups:
            self._offer(self.held.groups[key], holding.consumer)
        self._changed()

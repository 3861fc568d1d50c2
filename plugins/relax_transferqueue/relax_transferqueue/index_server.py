"""The index of a run, in an actor: which groups there are, in which rows of TransferQueue, and who may have them.

It has no connection to TransferQueue. Rows that no group is in any more go out with its answers, and whoever gets them
clears them.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from relax_core.transports.memory.blobs import Blobs
from relax_core.transports.memory.declarations import Declarations
from relax_core.transports.memory.group import Group
from relax_core.transports.memory.index import Held, Index, Taken
from relax_core.transports.memory.schema import Writing
from relax_transferqueue.stored import Stored, rows_of

Answer = tuple[Any, list[str]]
"""What was asked for, and rows of TransferQueue to be cleared."""


class IndexServer:
    """Every method is one step under one lock; ``append`` and ``take`` wait outside of it. What is returned is pickled
    later, so it is a copy of what the next step may change.

    Args:
        declared: State of the :class:`Declarations` of the run.
        capacity: Bytes of rows and blobs at which ``append`` waits; 0 is unbounded.
    """

    def __init__(self, declared: Mapping[str, Any], capacity: int) -> None:
        self._changed = threading.Condition()
        self._index: Index[Stored] = Index(Declarations.of(declared), capacity, self._changed.notify_all)
        self._rows: dict[int, set[str]] = {}
        """Of each held group."""
        self._blob_rows: dict[str, str] = {}
        """By key of the blob."""
        self._garbage: list[str] = []
        self._kept_until = 0.0

    def declared(self) -> Mapping[str, Any]:
        """State of the run's declarations."""
        return self._index.declared.state()

    # Rows come in.

    def append(
        self,
        group: int,
        rows: int,
        entries: Stored,
        version: int | None,
        timeout: float,
        close: bool,
        repeat: bool,
    ) -> Answer:
        """See :meth:`Index.append`, which it repeats until there is room; the values are in TransferQueue already."""
        deadline = time.monotonic() + timeout
        with self._changed:
            try:
                while (places := self._index.append(group, rows, entries, version, close, repeat)) is None:
                    remaining = deadline - time.monotonic()
                    if remaining <= 0:
                        raise self._index.no_room(group, entries.nbytes)
                    self._changed.wait(remaining)
            finally:
                self._note(group, entries)
            return self._answer(places)

    def write(self, writings: Sequence[Writing[Stored]], version: int | None, repeat: bool) -> Answer:
        """See :meth:`Transport.write`; the values of the entries are in TransferQueue already."""
        with self._changed:
            try:
                self._index.write(writings, version, repeat)
            finally:
                for writing in writings:
                    self._note(writing.group, writing.entries)
            return self._answer()

    def close_group(self, group: int) -> Answer:
        """See :meth:`Transport.close_group`."""
        with self._changed:
            self._index.close_group(group)
            return self._answer()

    def drop(self, groups: Sequence[int]) -> Answer:
        """See :meth:`Transport.drop`."""
        with self._changed:
            self._index.drop(groups)
            return self._answer()

    def finish(self) -> Answer:
        """See :meth:`Transport.finish`."""
        with self._changed:
            self._index.finish()
            return self._answer()

    # Groups go out.

    def take(self, consumer: str, minimum: int, maximum: int, timeout: float, seconds: float) -> Taken[Stored] | None:
        """See :meth:`Transport.take`."""
        deadline = time.monotonic() + timeout
        with self._changed:
            reclaims = self._index.reclaims[consumer]
            while (taken := self._index.take(consumer, minimum, maximum, seconds)) is None:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or self._index.reclaims[consumer] != reclaims:
                    return None
                self._changed.wait(min(remaining, self._index.seconds_until_expiry()))
            return taken._replace(groups=[group.copy() for group in taken.groups])

    def leased(self, lease: str, only: set[int] | None) -> list[Group[Stored]]:
        """See :meth:`Index.leased`."""
        with self._changed:
            return [group.copy() for group in self._index.leased(lease, only)]

    def renew(self, lease: str, seconds: float) -> None:
        """See :meth:`Transport.renew`."""
        with self._changed:
            self._index.renew(lease, seconds)

    def ack(self, lease: str) -> Answer:
        """See :meth:`Transport.ack`."""
        with self._changed:
            self._index.ack(lease)
            return self._answer()

    def nack(self, lease: str) -> None:
        """See :meth:`Transport.nack`."""
        with self._changed:
            self._index.nack(lease)

    def reclaim(self, consumer: str) -> None:
        """See :meth:`Transport.reclaim`."""
        with self._changed:
            self._index.reclaim(consumer)

    # Blobs.

    def hold_blob(self, key: str, group: int) -> bool:
        """See :meth:`Index.hold_blob`."""
        with self._changed:
            return self._index.hold_blob(key, group)

    def put_blob(self, key: str, row: str, nbytes: int, group: int) -> Answer:
        """See :meth:`Transport.put_blob`; the bytes are in ``row``, which is garbage where another has brought them."""
        with self._changed:
            self._index.put_blob(key, row, nbytes, group)
            blob = self._index.blobs.held.get(key)
            if blob is None or blob.data != row:
                self._garbage.append(row)
            else:
                self._blob_rows[key] = row
            return self._answer()

    def blob_row(self, key: str) -> str:
        """The row of a blob."""
        with self._changed:
            row: str = self._index.blobs.get(key)
            return row

    # The whole.

    def keep(self, seconds: float) -> tuple[Held[Stored], Blobs[str]]:
        """All there is at this moment. No row is cleared until :meth:`let_go`, or for so many seconds."""
        with self._changed:
            self._kept_until = time.monotonic() + seconds
            held = self._index.held
            groups = {key: group.copy() for key, group in held.groups.items()}
            gone, dropped, blobs = deepcopy((held.gone, held.dropped, self._index.blobs))
            return Held(groups, gone, dropped, held.finished), blobs

    def let_go(self) -> Answer:
        """What :meth:`keep` gave has been read."""
        with self._changed:
            self._kept_until = 0.0
            return self._answer()

    def restore(self, held: Held[Stored], blobs: Blobs[str]) -> Answer:
        """See :meth:`Index.restore`."""
        with self._changed:
            self._garbage += self._blob_rows.values()
            self._blob_rows = {key: blob.data for key, blob in blobs.held.items()}
            for rows in self._rows.values():
                self._garbage += rows
            self._rows = {key: rows_of(group) for key, group in held.groups.items()}
            self._index.restore(held, blobs)
            return self._answer()

    def depth(self) -> Mapping[str, int]:
        """See :meth:`Transport.depth`."""
        with self._changed:
            return self._index.depth()

    # Below, the caller holds the lock.

    def _note(self, key: int, entries: Stored) -> None:
        """Remembers the rows that a group is in now; those that it did not take up are garbage."""
        group = self._index.held.groups.get(key)
        taken_up = set() if group is None else rows_of(group)
        if entries.row in taken_up:
            self._rows.setdefault(key, set()).add(entries.row)
        else:
            self._garbage.append(entries.row)

    def _answer(self, result: Any = None) -> Answer:
        for key in self._rows.keys() - self._index.held.groups.keys():
            self._garbage += self._rows.pop(key)
        for blob in self._blob_rows.keys() - self._index.blobs.held.keys():
            self._garbage.append(self._blob_rows.pop(blob))
        if time.monotonic() < self._kept_until:
            return result, []
        garbage, self._garbage = self._garbage, []
        return result, garbage

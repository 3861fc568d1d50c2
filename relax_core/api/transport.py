"""Transports carry rows between roles."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from relax_core.api.columns import Column, ColumnSpec, IntArray, Table


@dataclass(frozen=True)
class Consumer:
    """A role that takes rows.

    Args:
        name: The role's name.
        reads: Columns that must be present before a group is ready for it.
        light: The part of ``reads`` that comes with a lease at once; the rest is fetched.
    """

    name: str
    reads: frozenset[str]
    light: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Lease:
    """Whole closed groups handed to one consumer until it acknowledges or the lease expires.

    Args:
        key: Unique name of the lease.
        consumer: Who holds it.
        table: All rows of the leased groups with the consumer's light columns.
        seconds: Life time from hand-out or renewal.
        attempt: How often the most handed-out of its groups has been handed to this consumer; above 1, a holder before
            may have done part of the work.
    """

    key: str
    consumer: str
    table: Table
    seconds: float
    attempt: int = 1


class Transport(ABC):
    """Typed columns over rows in groups, written once, taken by lease; safe to call from several threads.

    A group is ready for a consumer when it is closed, not dropped, and every column the consumer reads is present on
    all its rows. Each consumer gets each group once, unless a lease is returned or expires. A group is forgotten when
    every consumer has acknowledged it or when it is dropped; blobs that no other group holds go with it.
    """

    def __init__(self, config: Any, context: Any) -> None: ...

    @abstractmethod
    def open(self, columns: Sequence[ColumnSpec], consumers: Sequence[Consumer]) -> None:
        """Declares the run's columns and consumers; called once, before anything else."""

    @abstractmethod
    def append(
        self,
        group: int,
        columns: Sequence[Column],
        version: int | None = None,
        timeout: float = 0.0,
        close: bool = False,
        repeat: bool = False,
    ) -> IntArray:
        """Adds rows to an open group; a group column among ``columns`` has one entry. Returns the new row ids.

        Args:
            group: Group id, chosen by the producer; unique in the run.
            columns: Columns of equal row count, a group column apart, which has one entry. Per-token columns of one row
                have equal lengths.
            version: Weight version that computed them.
            timeout: Seconds to wait while the transport is full.
            close: The group has all its rows with these: :meth:`close_group` in the same step.
            repeat: The producer may have appended and closed the group in one step before, and died. Such a group stays
                as it is; the result is the ids it has, none where it is gone.

        Raises:
            TransportError: Unknown column, wrong type or length, closed group, finished stream.
            DeadlineExceeded: Still full at the deadline.
        """

    @abstractmethod
    def write(
        self, ids: npt.ArrayLike, columns: Sequence[Column], version: int | None = None, repeat: bool = False
    ) -> None:
        """Adds columns to existing rows, all or nothing. Each cell is written once.

        A group column has one entry per group named, by ascending group id. Rows of a dropped group are ignored: the
        writer could not have known. With ``repeat`` the writer may have done so before, and died: cells that exist
        are kept.

        Raises:
            TransportError: Unknown row or column, wrong type or length, or a cell already written.
        """

    @abstractmethod
    def close_group(self, group: int) -> None:
        """The group has all its rows. A group without rows is an error."""

    @abstractmethod
    def drop(self, groups: npt.ArrayLike) -> None:
        """Removes whole groups from every consumer; leases that hold them go on with the rest."""

    @abstractmethod
    def finish(self) -> None:
        """The producer will open no more groups."""

    @abstractmethod
    def take(
        self, consumer: str, minimum: int = 1, maximum: int = 1, timeout: float = 0.0, seconds: float = 600.0
    ) -> Lease | None:
        """Leases between ``minimum`` and ``maximum`` ready groups: those first that were handed out before, so that
        whoever repeats a batch gets what it had, then the oldest group ids. The table is in the order of the ids.

        Returns ``None`` when fewer than ``minimum`` are ready at the deadline ("nothing yet"). After ``finish``, when
        no more can become ready, a remainder below ``minimum`` is handed out as it is; a group on lease can come back
        and holds that up.

        Raises:
            EndOfStream: The stream is finished and nothing is left for this consumer.
        """

    @abstractmethod
    def fetch(self, lease: Lease, columns: Sequence[str], ids: npt.ArrayLike | None = None) -> Table:
        """The named columns of the lease's rows, or of those with the given ids, in the order given.

        The arrays of a table, like those of a lease's, may be read-only, and stay as they are while they are used.

        Only columns the consumer reads can be fetched. Rows of groups that were dropped meanwhile are left out; the ids
        of the table show which.

        Raises:
            LeaseExpired: The lease has run out.
        """

    @abstractmethod
    def renew(self, lease: Lease, seconds: float) -> Lease:
        """Extends a living lease; ``LeaseExpired`` otherwise."""

    @abstractmethod
    def ack(self, lease: Lease) -> None:
        """The consumer is done with all groups of the lease: all or nothing. ``LeaseExpired`` if too late."""

    @abstractmethod
    def nack(self, lease: Lease) -> None:
        """Gives the groups back; they are handed out again, to whoever takes next."""

    @abstractmethod
    def reclaim(self, consumer: str) -> None:
        """The holder of this consumer's leases is dead: all are given back, and whoever still waits gets nothing."""

    @abstractmethod
    def put_blob(self, data: bytes, group: int) -> str:
        """Stores bytes under their SHA-256, which is returned, as long as a group is there that holds them.

        The group holds them from now on, also before it has a row, and however often this is called. Equal bytes are
        stored and counted once. A group that is gone holds nothing: then this stores nothing. A blob never waits for
        room: it counts as soon as a group that holds it has rows, and their ``append`` waits for both.
        """

    @abstractmethod
    def get_blob(self, key: str) -> bytes:
        """The bytes of a blob; ``TransportError`` for a key that no group holds."""

    @abstractmethod
    def snapshot(self) -> Mapping[str, Any]:
        """Everything held, of plain values and arrays only, so that it can be stored without pickle; ``groups`` are the
        ids of the groups, int64. Leases are not part of it: their groups count as not taken."""

    @abstractmethod
    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Replaces everything held by a snapshot taken with the same columns and consumers."""

    @abstractmethod
    def depth(self) -> Mapping[str, int]:
        """Counts now: ``groups``, ``rows``, ``bytes`` (blobs once), and ``ready/<consumer>`` groups."""

    def close(self) -> None:
        """Ends the server that :meth:`open` started, also one that stands still; rows are lost, and to other ends it is
        :class:`relax_core.api.errors.TransportLost`. Nothing where the rows are in this object."""

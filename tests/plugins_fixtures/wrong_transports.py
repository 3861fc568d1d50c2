"""Transports with one classic error each."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import Column, IntArray, Table
from relax_core.api.errors import EndOfStream, LeaseExpired
from relax_core.api.transport import Lease
from relax_core.transports.memory.blobs import blob_key
from relax_core.transports.memory.transport import MemoryTransport


class HandsOutOpenGroups(MemoryTransport):
    def append(self, group: int, columns: Sequence[Column], *more: Any, **options: Any) -> IntArray:
        return super().append(group, columns, *more, **{**options, "close": True})

    def close_group(self, group: int) -> None:
        pass


class RepeatsGroups(MemoryTransport):
    def ack(self, lease: Lease) -> None:
        self.nack(lease)


class KeepsDroppedGroups(MemoryTransport):
    def drop(self, groups: npt.ArrayLike) -> None:
        pass


class EmptyIsTheEnd(MemoryTransport):
    def take(self, consumer: str, *more: Any, **options: Any) -> Lease | None:
        lease = super().take(consumer, *more, **options)
        if lease is None:
            raise EndOfStream(consumer)
        return lease


class LeasesForEver(MemoryTransport):
    def take(self, consumer: str, *more: Any, **options: Any) -> Lease | None:
        return super().take(consumer, *more, **{**options, "seconds": 1e9})


class RenewsTheDead(MemoryTransport):
    def renew(self, lease: Lease, seconds: float) -> Lease:
        try:
            return super().renew(lease, seconds)
        except LeaseExpired:
            return lease


class RenewsNothing(MemoryTransport):
    def renew(self, lease: Lease, seconds: float) -> Lease:
        return replace(lease, seconds=seconds)


class FirstWriteWins(MemoryTransport):
    def write(
        self, ids: npt.ArrayLike, columns: Sequence[Column], version: int | None = None, repeat: bool = False
    ) -> None:
        super().write(ids, columns, version, repeat=True)


class FetchesInItsOwnOrder(MemoryTransport):
    def fetch(self, lease: Lease, columns: Sequence[str], ids: npt.ArrayLike | None = None) -> Table:
        return super().fetch(lease, columns, None if ids is None else np.sort(np.asarray(ids)))


class NeverFull(MemoryTransport):
    def __init__(self, config: Any, *more: Any, **options: Any) -> None:
        super().__init__(config.model_copy(update={"capacity_bytes": 0}), *more, **options)


class CountsHolds(MemoryTransport):
    """Every hold on a blob as bytes of its own."""

    def depth(self) -> Mapping[str, int]:
        blobs = self._index.blobs
        again = sum(blob.nbytes * (len(blob.holders) - 1) for blob in blobs.held.values())
        return {**super().depth(), "bytes": super().depth()["bytes"] + again}


class HoldsForTheGone(MemoryTransport):
    def put_blob(self, data: bytes, group: int) -> str:
        self._index.blobs.put(key := blob_key(data), data, len(data), [group])
        return key

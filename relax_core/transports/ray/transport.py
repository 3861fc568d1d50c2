"""A transport in an actor of its own: rows go there and come back through Ray's object store."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import Column, ColumnSpec, IntArray, Table
from relax_core.api.context import Context
from relax_core.api.transport import Consumer, Lease, Transport
from relax_core.transports.memory.transport import MemoryTransport
from relax_core.transports.ray.config import RayTransportConfig
from relax_core.transports.ray.server import RunServer


class RayTransport(Transport):
    """One end of the run's transport; every process of the run builds its own.

    ``open`` starts the actor on the node of the process that opens, with which it dies; the others, on whatever node,
    find it by the run's name. Ray carries columns above 100 KB by its object stores and small ones with the call. The
    actor keeps copies, so a row outlives the process and the node that it came from; what is handed out are read-only
    views of the object store.

    Args:
        config: Capacity and deadline.
        context: Names the run.
    """

    def __init__(self, config: RayTransportConfig, context: Context) -> None:
        self._config = config
        self._server = RunServer(context.run_id, config.call_seconds)

    def open(self, columns: Sequence[ColumnSpec], consumers: Sequence[Consumer]) -> None:
        self._server.start(MemoryTransport, self._config)
        self._server.call("open", columns, consumers)

    def append(
        self,
        group: int,
        columns: Sequence[Column],
        version: int | None = None,
        timeout: float = 0.0,
        close: bool = False,
        repeat: bool = False,
    ) -> IntArray:
        arguments = (group, columns, version, timeout, close, repeat)
        ids: IntArray = self._server.call("append", *arguments, wait=timeout, repeatable=close and repeat)
        return ids

    def write(
        self, ids: npt.ArrayLike, columns: Sequence[Column], version: int | None = None, repeat: bool = False
    ) -> None:
        self._server.call("write", np.asarray(ids, np.int64), columns, version, repeat, repeatable=repeat)

    def close_group(self, group: int) -> None:
        self._server.call("close_group", group)

    def drop(self, groups: npt.ArrayLike) -> None:
        self._server.call("drop", np.asarray(groups, np.int64), repeatable=True)

    def finish(self) -> None:
        self._server.call("finish", repeatable=True)

    def take(
        self, consumer: str, minimum: int = 1, maximum: int = 1, timeout: float = 0.0, seconds: float = 600.0
    ) -> Lease | None:
        lease: Lease | None = self._server.call("take", consumer, minimum, maximum, timeout, seconds, wait=timeout)
        return lease

    def fetch(self, lease: Lease, columns: Sequence[str], ids: npt.ArrayLike | None = None) -> Table:
        table: Table = self._server.call("fetch", _named(lease), columns, ids, repeatable=True)
        return table

    def renew(self, lease: Lease, seconds: float) -> Lease:
        self._server.call("renew", _named(lease), seconds, repeatable=True)
        return replace(lease, seconds=seconds)

    def ack(self, lease: Lease) -> None:
        self._server.call("ack", _named(lease))

    def nack(self, lease: Lease) -> None:
        self._server.call("nack", _named(lease), repeatable=True)

    def reclaim(self, consumer: str) -> None:
        self._server.call("reclaim", consumer, repeatable=True)

    def put_blob(self, data: bytes, group: int) -> str:
        key: str = self._server.call("put_blob", data, group, repeatable=True)
        return key

    def get_blob(self, key: str) -> bytes:
        data: bytes = self._server.call("get_blob", key, repeatable=True)
        return data

    def snapshot(self) -> Mapping[str, Any]:
        snapshot: Mapping[str, Any] = self._server.call("snapshot", repeatable=True)
        return snapshot

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._server.call("restore", snapshot)

    def depth(self) -> Mapping[str, int]:
        depth: Mapping[str, int] = self._server.call("depth", repeatable=True)
        return depth

    def close(self) -> None:
        self._server.close()


def _named(lease: Lease) -> Lease:
    """The lease without columns: the server has them."""
    return replace(lease, table=Table(lease.table.ids, lease.table.groups))

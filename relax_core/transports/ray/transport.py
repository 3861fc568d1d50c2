"""A transport in an actor of its own: rows go there and come back through Ray's object store."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
from ray.actor import ActorHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from relax_core.api.columns import Column, ColumnSpec, IntArray, Table
from relax_core.api.context import Context
from relax_core.api.errors import TransportError
from relax_core.api.transport import Consumer, Lease, Transport
from relax_core.transports.memory.transport import MemoryTransport
from relax_core.transports.ray.calls import ActorLost, ActorUnavailable, call, find_actor
from relax_core.transports.ray.config import RayTransportConfig

SERVER = "transport"
"""Name of the actor, in the namespace of the run."""

WAITING = "waiting"
WAITING_THREADS, THREADS = 64, 4
"""Calls in the actor at the same time: those that wait for rows or room never keep the others out."""

REPEATABLE = frozenset({"drop", "finish", "fetch", "renew", "nack", "reclaim", "get_blob", "snapshot", "depth"})
"""Calls that change nothing when they are made twice. Others are never repeated: they may have been done."""

PAUSE_SECONDS = 0.5
"""Between two tries over a connection that breaks."""


class RayTransport(Transport):
    """One end of the run's transport; every process of the run builds its own.

    ``open`` starts the actor on the node of the process that opens, with which it dies; the others, on whatever node,
    find it by the run's name.

    Args:
        config: Capacity and deadline.
        context: Names the run.
    """

    def __init__(self, config: RayTransportConfig, context: Context) -> None:
        self._config = config
        self._run_id = context.run_id
        self._server: ActorHandle | None = None

    def open(self, columns: Sequence[ColumnSpec], consumers: Sequence[Consumer]) -> None:
        if not ray.is_initialized():
            raise TransportError("transport: 'ray' needs a Ray cluster, which --runtime serve starts; there is none")
        if self._server is None:
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            groups: dict[str, Any] = {"concurrency_groups": {WAITING: WAITING_THREADS}}
            server: Any = ray.remote(**groups)(MemoryTransport)
            options = {"name": SERVER, "namespace": self._run_id, "num_cpus": 0, "max_concurrency": THREADS}
            self._server = server.options(**options, scheduling_strategy=here).remote(self._config)
        self._call("open", columns, consumers)

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
        ids: IntArray = self._call("append", *arguments, wait=timeout, repeatable=close and repeat)
        return ids

    def write(
        self, ids: npt.ArrayLike, columns: Sequence[Column], version: int | None = None, repeat: bool = False
    ) -> None:
        self._call("write", np.asarray(ids, np.int64), columns, version, repeat, repeatable=repeat)

    def close_group(self, group: int) -> None:
        self._call("close_group", group)

    def drop(self, groups: npt.ArrayLike) -> None:
        self._call("drop", np.asarray(groups, np.int64))

    def finish(self) -> None:
        self._call("finish")

    def take(
        self, consumer: str, minimum: int = 1, maximum: int = 1, timeout: float = 0.0, seconds: float = 600.0
    ) -> Lease | None:
        lease: Lease | None = self._call("take", consumer, minimum, maximum, timeout, seconds, wait=timeout)
        return None if lease is None else replace(lease, table=_own(lease.table))

    def fetch(self, lease: Lease, columns: Sequence[str], ids: npt.ArrayLike | None = None) -> Table:
        return _own(self._call("fetch", lease, columns, ids))

    def renew(self, lease: Lease, seconds: float) -> Lease:
        renewed: Lease = self._call("renew", lease, seconds)
        return renewed

    def ack(self, lease: Lease) -> None:
        self._call("ack", lease)

    def nack(self, lease: Lease) -> None:
        self._call("nack", lease)

    def reclaim(self, consumer: str) -> None:
        self._call("reclaim", consumer)

    def put_blob(self, data: bytes) -> str:
        key: str = self._call("put_blob", data)
        return key

    def get_blob(self, key: str) -> bytes:
        data: bytes = self._call("get_blob", key)
        return data

    def release_blob(self, key: str) -> None:
        self._call("release_blob", key)

    def snapshot(self) -> Mapping[str, Any]:
        snapshot: Mapping[str, Any] = self._call("snapshot")
        return snapshot

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._call("restore", snapshot)

    def depth(self) -> Mapping[str, int]:
        depth: Mapping[str, int] = self._call("depth")
        return depth

    def _call(self, method: str, *arguments: Any, wait: float = 0.0, repeatable: bool = False) -> Any:
        seconds, threads = self._config.call_seconds + wait, WAITING if wait else None
        deadline = time.monotonic() + seconds
        while True:
            try:
                if self._server is None:
                    self._server = find_actor(SERVER, self._run_id, seconds)
                return call(self._server, method, *arguments, timeout=seconds, threads=threads)
            except ActorUnavailable as error:
                if not (repeatable or method in REPEATABLE) or time.monotonic() > deadline:
                    raise TransportError(f"{method} may have been done or not: {error}") from error
                time.sleep(PAUSE_SECONDS)
            except ActorLost as error:
                raise TransportError(f"the transport of run {self._run_id!r} is gone: {error}") from error


def _own(table: Table) -> Table:
    """A copy that may be written to: what comes out of the object store may not."""
    columns = {
        name: Column(column.spec, column.values.copy(), None if column.offsets is None else column.offsets.copy())
        for name, column in table.columns.items()
    }
    versions = {name: version.copy() for name, version in table.versions.items()}
    return Table(table.ids.copy(), table.groups.copy(), columns, versions)

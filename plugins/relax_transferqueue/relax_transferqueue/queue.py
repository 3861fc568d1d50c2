"""One process's connection to TransferQueue: rows of named fields, and a deadline for everything."""

import asyncio
import os
import threading
import uuid
import weakref
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

# TransferQueue sets the threads of torch in whatever process it is called; several only cost time on small machines.
os.environ.setdefault("TQ_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
import torch
from ray.actor import ActorHandle
from tensordict import TensorDict
from transfer_queue.client import AsyncTransferQueueClient
from transfer_queue.metadata import BatchMeta
from transfer_queue.storage.simple_storage import StorageKeyNotFoundError

from relax_core.api.errors import DeadlineExceeded, TransportError
from relax_core.transports.ray.calls import call, within

Array = npt.NDArray[Any]
FAILURES = (RuntimeError, KeyError, ValueError, TypeError)
"""What TransferQueue raises."""


class Queue:
    """Puts, gets and clears rows by key. TransferQueue's own calls wait for ever when a process of it is gone.

    Args:
        controller: TransferQueue's, which knows where its storage is.
        partition: Of the rows.
        seconds: Deadline of every call.
        count: Counts rows that could not be cleared.
    """

    def __init__(
        self, controller: ActorHandle, partition: str, seconds: float, count: Callable[[str, int], None]
    ) -> None:
        self._partition = partition
        self._seconds = seconds
        self._count = count
        config = call(controller, "get_config", timeout=seconds)
        if config is None:
            raise TransportError("transferqueue: the TransferQueue of this cluster is still starting")
        backend = config.backend.storage_backend
        self._client = AsyncTransferQueueClient(f"relax-{uuid.uuid4().hex}", config.controller.zmq_info, 1)
        within(
            seconds,
            "transferqueue: connect",
            lambda: self._client.initialize_storage_manager(backend, config.backend[backend]),
        )
        self._loop = asyncio.new_event_loop()
        arguments = self._loop, self._client
        threading.Thread(target=_serve, args=arguments, name="transferqueue", daemon=True).start()
        # At exit the client ends itself.
        weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop).atexit = False

    def put(self, rows: Mapping[str, Mapping[str, Array]]) -> None:
        """Puts rows of fields; each row may have other fields.

        Raises:
            DeadlineExceeded: A process of TransferQueue did not answer.
            TransportError: TransferQueue could not do it.
        """
        if rows:
            self._run("put", self._put(rows))

    def get(self, wanted: Mapping[str, Collection[str]]) -> dict[tuple[str, str], Array]:
        """The fields that are wanted of each row, by row and field.

        Where a row is not there any more, it and others that the same fields are wanted of are left out.

        Raises:
            DeadlineExceeded: A process of TransferQueue did not answer.
            TransportError: TransferQueue could not do it.
        """
        found: dict[tuple[str, str], Array] = self._run("get", self._get(wanted))
        return found

    def clear(self, rows: Sequence[str]) -> None:
        """Clears rows, those that are there, without waiting for it; counts them if it fails."""
        asyncio.run_coroutine_threadsafe(self._clear(rows), self._loop)

    def clear_partition(self) -> None:
        """Clears all rows of the partition."""
        self._run("clear", self._clear_partition())

    async def _put(self, rows: Mapping[str, Mapping[str, Array]]) -> None:
        meta = await self._client.async_kv_retrieve_meta(list(rows), self._partition, create=True)
        for number, fields in enumerate(rows.values()):
            tensors = {name: _tensor(values).unsqueeze(0) for name, values in fields.items()}
            await self._client.async_put(TensorDict(tensors, batch_size=[1]), metadata=meta.select_samples([number]))

    async def _get(self, wanted: Mapping[str, Collection[str]]) -> dict[tuple[str, str], Array]:
        alike: dict[tuple[str, ...], list[str]] = {}
        for row, fields in wanted.items():
            alike.setdefault(tuple(sorted(fields)), []).append(row)
        found: dict[tuple[str, str], Array] = {}
        for fields, rows in alike.items():
            meta: BatchMeta = await self._client.async_kv_retrieve_meta(rows, self._partition)
            if meta.size < len(rows) or not set(fields) <= set(meta.field_names):
                continue
            try:
                data = await self._client.async_get_data(meta.select_fields(list(fields)))
            except StorageKeyNotFoundError:  # cleared between the two calls
                continue
            for field in fields:
                # Rows come back one by one, or as one ragged tensor: dense again, each as it was put.
                found |= {(row, field): value.numpy() for row, value in zip(rows, data[field], strict=True)}
        return found

    async def _clear(self, rows: Sequence[str]) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                meta = await self._client.async_kv_retrieve_meta(list(rows), self._partition)
                if meta.size:
                    await self._client.async_clear_samples(meta)
        except (TimeoutError, *FAILURES):
            await asyncio.to_thread(self._count, "transport/rows_not_cleared", len(rows))

    async def _clear_partition(self) -> None:
        if self._partition in await self._client.async_get_partition_list():
            await self._client.async_clear_partition(self._partition)

    def _run(self, what: str, work: Coroutine[Any, Any, Any]) -> Any:
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, self._seconds), self._loop)
        try:
            return future.result()
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"transferqueue: {what}: its controller or a storage unit gave no answer within {self._seconds:g} s"
            ) from error
        except FAILURES as error:
            raise TransportError(f"transferqueue: {what}: {type(error).__name__}: {error}") from error


def _serve(loop: asyncio.AbstractEventLoop, client: AsyncTransferQueueClient) -> None:
    """Runs the calls of a queue until that is gone, and ends its client. Nobody else may hold the client: its own
    finalizer would end ZeroMQ's context in whatever thread collects it, and wait there for sockets of this one."""
    loop.run_forever()
    client.close()
    loop.close()


def _tensor(values: Array) -> torch.Tensor:
    """The same memory, where torch can take it as it is."""
    return torch.from_numpy(np.require(values, requirements=["C", "W"]))

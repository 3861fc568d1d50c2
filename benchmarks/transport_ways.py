"""Ways to carry a batch from one process to another: Relax's transports, and what there is beside them.

Each is an object that goes to both sides, where ``producer`` and ``consumer`` make what puts and gets a batch.
"""

import itertools
import mmap
import queue
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from transport_batches import IN_FLIGHT, PATIENCE, Shape, Touch, Turns, as_arrays, batch, touch, values_bytes
from transport_calls import Line, start_server

from relax_core.api.context import Context
from relax_core.api.transport import Consumer, Transport
from relax_core.registry import load_target

Put = Callable[[], None]
Get = Callable[[Touch], None]

CONSUMER = "bench-consumer"
"""Name of the consumer's actor."""

ARRIVED: queue.Queue[list[Any]] = queue.Queue()
"""References that the consumer's actor has been pushed."""

TRANSPORTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "memory": ("relax_core.transports.memory", "MemoryTransport", {}),
    "shm": ("relax_core.transports.shm", "ShmTransport", {}),
    "ray": ("relax_core.transports.ray", "RayTransport", {}),
    "transferqueue": ("relax_transferqueue", "TransferQueueTransport", {"attach": True}),
}
"""Relax's transports: package, class and settings."""


class Way(ABC):
    """How batches of one shape go from a producer to a consumer."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def open(self) -> None:
        """Called once, before either side is made, in the process that measures."""

    def close(self) -> None:
        """Called there when both sides are done."""

    @abstractmethod
    def producer(self) -> Put:
        """What puts the batch."""

    @abstractmethod
    def consumer(self) -> Get:
        """What gets one and touches it."""


class RelaxWay(Way):
    """A transport of Relax, with all it does: one group a batch, lease, acknowledgement, versions, bounded bytes.

    All columns come with the lease, so nothing has to be fetched.
    """

    def __init__(self, shape: Shape, name: str) -> None:
        super().__init__(shape)
        self._name = name
        self._folder = Path(tempfile.mkdtemp(prefix="relax-bench-"))
        self._ends: list[Transport] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ends": []}

    def open(self) -> None:
        specs = [column.spec for column in batch(self.shape)]
        names = frozenset(spec.name for spec in specs)
        self._end().open(specs, [Consumer("consumer", reads=names, light=names)])

    def close(self) -> None:
        for end in self._ends:
            end.close()
        self._ends.clear()
        shutil.rmtree(self._folder)

    def producer(self) -> Put:
        transport, columns, groups = self._end(), batch(self.shape), itertools.count()

        def put() -> None:
            group = next(groups)
            transport.append(group, columns, version=group, timeout=PATIENCE, close=True)

        return put

    def consumer(self) -> Get:
        transport = self._end()

        def get(touch: Touch) -> None:
            lease = transport.take("consumer", timeout=PATIENCE)
            if lease is None:
                raise TimeoutError("nothing to take")
            for column in lease.table.columns.values():
                touch(column.values)
            transport.ack(lease)

        return get

    def _end(self) -> Transport:
        """This process's end; the sides of the transport in memory share one."""
        if not self._ends or self._name != "memory":
            package, name, settings = TRANSPORTS[self._name]
            capacity = 2 * IN_FLIGHT * sum(column.nbytes for column in batch(self.shape))
            config = load_target(f"{package}.config:{name}Config")(capacity_bytes=capacity, **settings)
            build = load_target(f"{package}.transport:{name}")
            self._ends.append(build(config, Context(self._folder.name, 0, self._folder)))
        return self._ends[-1]


class Memcpy(Way):
    """One copy, by one thread of one process: nothing that copies can take less."""

    def producer(self) -> Put:
        columns = batch(self.shape)
        copies = [np.empty_like(column.values) for column in columns]

        def put() -> None:
            for copy, column in zip(copies, columns, strict=True):
                copy[...] = column.values
                touch(copy)

        return put

    def consumer(self) -> Get:
        return lambda touch: None


class Ring(Way):
    """Slots in shared memory, and a pipe that says what is in the next: one copy in, views out, and nothing else."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self._slot = values_bytes(batch(shape)) + len(batch(shape)) * 64
        self._receiving, self._sending = get_context("spawn").Pipe(False)
        self._path = Path(f"/dev/shm/relax-ring-{time.time_ns()}")

    def open(self) -> None:
        with self._path.open("wb") as file:
            file.truncate(self._slot * (IN_FLIGHT + 1))

    def close(self) -> None:
        self._path.unlink()

    def producer(self) -> Put:
        memory, arrays, numbers = self._memory(), as_arrays(batch(self.shape)), itertools.count()
        tell = self._tells()

        def put() -> None:
            place, layout = next(numbers) % (IN_FLIGHT + 1) * self._slot, []
            for name, array in arrays.items():
                flat = array.reshape(-1).view(np.uint8)
                memory[place : place + flat.size] = flat
                layout.append((name, array.dtype.str, array.shape, place))
                place += -(-flat.size // 64) * 64
            tell(msgpack.packb(layout))

        return put

    def consumer(self) -> Get:
        memory, (hear, used) = self._memory(), self._hears()

        def get(touch: Touch) -> None:
            for _, dtype, shape, place in msgpack.unpackb(hear()):
                nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
                touch(memory[place : place + nbytes].view(dtype).reshape(shape))
            used()

        return get

    def _tells(self) -> Callable[[bytes], None]:
        """What says that a slot is full."""
        return self._sending.send_bytes

    def _hears(self) -> tuple[Callable[[], bytes], Callable[[], None]]:
        """What hears of a full slot, and what says that it was used."""
        return self._receiving.recv_bytes, lambda: None

    def _memory(self) -> np.ndarray:
        with self._path.open("r+b") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)


class CalledRing(Ring):
    """The ring with its index in a server: a call for what is put, one for what is taken, one to acknowledge it. A
    transport with an index in a server of Python costs no less, and this one does nothing else."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self._folder = Path(tempfile.mkdtemp(prefix="relax-calls-"))
        self._server: BaseProcess | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_server": None}

    def open(self) -> None:
        super().open()
        self._server = start_server(self._folder / "socket")

    def close(self) -> None:
        if self._server is not None:
            self._server.terminate()
            self._server.join(PATIENCE)
        shutil.rmtree(self._folder)
        super().close()

    def _tells(self) -> Callable[[bytes], None]:
        return Line(self._folder / "socket").put

    def _hears(self) -> tuple[Callable[[], bytes], Callable[[], None]]:
        line = Line(self._folder / "socket")
        return line.take, line.acknowledge


class ZeroMq(Way):
    """A ZeroMQ pipe: the layout and one frame a column, not copied by Python on either side."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self._folder = tempfile.mkdtemp(prefix="relax-zmq-")
        self._address = f"ipc://{self._folder}/pipe"

    def close(self) -> None:
        shutil.rmtree(self._folder)

    def producer(self) -> Put:
        import zmq

        socket = zmq.Context().socket(zmq.PUSH)
        socket.set_hwm(IN_FLIGHT)
        socket.bind(self._address)
        arrays = as_arrays(batch(self.shape))

        def put() -> None:
            layout = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
            socket.send_multipart([msgpack.packb(layout), *arrays.values()], copy=False)

        return put

    def consumer(self) -> Get:
        import zmq

        socket = zmq.Context().socket(zmq.PULL)
        socket.set_hwm(IN_FLIGHT)
        socket.connect(self._address)

        def get(touch: Touch) -> None:
            head, *frames = socket.recv_multipart(copy=False)
            for (_, dtype, shape), frame in zip(msgpack.unpackb(head.buffer), frames, strict=True):
                touch(np.frombuffer(frame.buffer, dtype).reshape(shape))

        return get


class RayObjects(Way):
    """Ray's object store: a dict of arrays for each batch, whose reference is pushed to the consumer's actor."""

    def producer(self) -> Put:
        import ray

        arrays, consumer = as_arrays(batch(self.shape)), ray.get_actor(CONSUMER)

        def put() -> None:
            consumer.push.remote([ray.put(arrays)])

        return put

    def consumer(self) -> Get:
        import ray

        def get(touch: Touch) -> None:
            arrays = ray.get(ARRIVED.get(timeout=PATIENCE)[0])
            for array in arrays.values():
                touch(array)

        return get


class TransferQueueWay(Way):
    """TransferQueue's own client, one thread and two storage units: put; then metadata, data and clearing."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self._partition = f"bench-{time.time_ns()}"

    def producer(self) -> Put:
        import torch
        from tensordict import TensorDict

        client = self._client()
        tensors = {name: torch.from_numpy(array) for name, array in as_arrays(batch(self.shape)).items()}
        rows = TensorDict(tensors, batch_size=self.shape.rows)
        return lambda: client.put(rows, partition_id=self._partition)

    def consumer(self) -> Get:
        client, names = self._client(), list(as_arrays(batch(self.shape)))

        def get(touch: Touch) -> None:
            arguments = {"data_fields": names, "batch_size": self.shape.rows, "task_name": "consumer"}
            deadline = time.monotonic() + PATIENCE
            while not (found := client.get_meta(partition_id=self._partition, mode="fetch", **arguments)).size:
                if time.monotonic() > deadline:
                    raise TimeoutError("nothing to take")
                time.sleep(0.001)
            data = client.get_data(found)
            for name in names:
                tensor = data[name]
                touch((tensor.values() if tensor.is_nested else tensor).numpy())
            client.clear_samples(found)

        return get

    @staticmethod
    def _client() -> Any:
        import transfer_queue

        transfer_queue.init()
        return transfer_queue.get_client()


class Side:
    """A side of a way in an actor of a Ray cluster."""

    def produce(self, way: Way, path: Path, seconds: float) -> tuple[float, int]:
        """See :meth:`Turns.produce`."""
        return Turns(path).produce(way.producer(), seconds)

    def consume(self, way: Way, path: Path) -> float:
        """See :meth:`Turns.consume`."""
        return Turns(path).consume(way.consumer())

    def push(self, reference: list[Any]) -> None:
        """A reference in a list, so that it comes as a reference."""
        ARRIVED.put(reference)


WAYS: dict[str, Callable[[Shape], Way]] = {
    "memcpy": Memcpy,
    "ring": Ring,
    "ring with calls": CalledRing,
    "zeromq": ZeroMq,
    "relax memory": lambda shape: RelaxWay(shape, "memory"),
    "relax shm": lambda shape: RelaxWay(shape, "shm"),
    "ray numpy": RayObjects,
    "relax ray": lambda shape: RelaxWay(shape, "ray"),
    "relax transferqueue": lambda shape: RelaxWay(shape, "transferqueue"),
    "transferqueue": TransferQueueWay,
}
IN_THREADS = ("memcpy", "relax memory")
ON_QUEUE = ("relax transferqueue", "transferqueue")
IN_ACTORS = ("ray numpy", "relax ray", *ON_QUEUE)

"""Broadcasts each publication, bucket by bucket, from the trainer's first rank to the engines' processes."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from relax_core.api.context import Context
from relax_core.api.engine import Engine
from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Acknowledgement, Bucket, Publication, WeightSync
from relax_core.weight_syncs.collective.config import CollectiveWeightSyncConfig
from relax_core.weight_syncs.collective.group import HOST, ROOT, BroadcastBuckets, Meeting
from relax_core.weights.client import newest_of
from relax_core.weights.exchange import exchange
from relax_core.weights.manifest import in_place
from relax_core.weights.shared_memory import PlacedBucket, lay_out, placed

CONNECT_SECONDS = 20.0
"""In which this process reaches itself at the address that engines are told."""

T = TypeVar("T")


@dataclass(frozen=True)
class Flat:
    """A bucket as one piece of memory, which is what is broadcast."""

    content: Tensor
    places: PlacedBucket


class CollectiveWeightSync(WeightSync):
    """The group lives as long as its members do: after a failure, or with other engines, it is built anew."""

    def __init__(self, config: CollectiveWeightSyncConfig, context: Context) -> None:
        self._host = config.host
        self._context = context
        self._device = torch.device(context.device)
        self._store: Any = None
        self._meeting: Meeting | None = None
        self._members: tuple[str, ...] = ()
        self._group: Any = None
        self._groups = self._sent = 0
        self._flat: list[Flat] = []

    async def stage(self, publication: Publication) -> Publication:
        former = {len(flat.content): flat.content for flat in self._flat}
        flat = await asyncio.to_thread(lambda: [self._flattened(bucket, former) for bucket in in_place(publication)])
        self._flat = flat
        buckets = [{name: placed(flat.content, place) for name, place in flat.places.items()} for flat in self._flat]
        return Publication(publication.manifest, buckets)

    async def send(
        self, staged: Publication, engines: Mapping[str, Engine], timeout: float
    ) -> Mapping[str, Acknowledgement]:
        meeting = await self._meet(tuple(engines), timeout)
        flat = self._flat
        sizes, places = [len(each.content) for each in flat], [each.places for each in flat]
        self._sent += 1
        buckets = BroadcastBuckets(meeting, self._sent, sizes, places)
        sending = _on_daemon_thread(lambda: self._broadcast(meeting, flat)) if engines else None
        try:
            taken = await exchange(staged.manifest, buckets, engines, timeout)
            if sending is not None:
                await asyncio.wait_for(asyncio.wrap_future(sending), timeout)
        except BaseException as error:
            # The thread may wait for a member that is gone, until its own deadline: it is left to itself.
            self._meeting = self._group = None
            self._flat = []
            if isinstance(error, RuntimeError | TimeoutError):
                raise WeightSyncError(f"the broadcast failed: {error}") from error
            raise
        return taken

    def newest(self) -> Publication | None:
        return newest_of(self._context.directory)

    async def close(self) -> None:
        self._group = self._meeting = self._store = None
        self._flat = []

    def _flattened(self, bucket: Bucket, former: dict[int, Tensor]) -> Flat:
        """A copy of a bucket's tensors, in one piece: in former memory of that size, where there is some."""
        places, size = lay_out(bucket)
        content = former.pop(size, None)
        if content is None:
            content = torch.empty(size, dtype=torch.uint8, device=self._device if self._backend == "nccl" else HOST)
        for name, place in places.items():
            placed(content, place).copy_(bucket[name].detach())
        return Flat(content, places)

    @property
    def _backend(self) -> str:
        return "nccl" if self._device.type == "cuda" else "gloo"

    async def _meet(self, members: tuple[str, ...], timeout: float) -> Meeting:
        """The group's meeting: the present one, as long as nobody failed and the members are the same."""
        if self._store is None:
            # On a thread: neither a name nor an address that is not this host's is refused at once.
            opening = _on_daemon_thread(lambda: self._opened(timeout))
            try:
                self._store = await asyncio.wait_for(asyncio.wrap_future(opening), timeout)
            except (OSError, RuntimeError) as error:
                raise WeightSyncError(
                    f"weight_sync.host: this process cannot be reached at {self._host!r}: {error}"
                ) from error
        if self._meeting is None or members != self._members:
            self._groups += 1
            self._group, self._members = None, members
            self._meeting = Meeting(
                self._host, self._store.port, self._groups, len(members) + 1, self._backend, timeout
            )
        return self._meeting

    def _opened(self, timeout: float) -> dist.TCPStore:
        soon = timedelta(seconds=min(timeout, CONNECT_SECONDS))
        store = dist.TCPStore(self._host, 0, is_master=True, wait_for_workers=False, timeout=soon)
        store.set_timeout(timedelta(seconds=timeout))
        return store

    def _broadcast(self, meeting: Meeting, flat: Sequence[Flat]) -> None:
        """On a thread of its own, until every engine has everything, or the deadline."""
        group = self._group or meeting.join(self._store, ROOT)
        self._group = group if self._meeting is meeting else None
        for each in flat:
            meeting.broadcast(group, each.content)


def _on_daemon_thread(work: Callable[[], T]) -> Future[T]:
    """What the work returns or raises, on a thread that keeps no process from ending."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:  # whoever waits raises it
            done.set_exception(error)

    threading.Thread(target=run, name="broadcast", daemon=True).start()
    return done

"""A process group of its own, beside whatever group a trainer or an engine is in already."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Bucket, SharedBuckets
from relax_core.weights.shared_memory import PlacedBucket, placed

ROOT = 0
HOST = "cpu"
"""Where gloo broadcasts from and to."""


@dataclass(frozen=True)
class Meeting:
    """Where the members of a group find each other, and who they are.

    Args:
        host: Of the store.
        port: Of the store.
        number: Of the group; each is another one.
        size: Members, the trainer among them.
        backend: ``gloo`` or ``nccl``.
        seconds: In which all must have come, and in which each broadcast must be done.
    """

    host: str
    port: int
    number: int
    size: int
    backend: str
    seconds: float

    def join(self, store: Any, rank: int | None = None) -> Any:
        """The process group, once all are there; a rank is given to whoever has none."""
        prefixed = dist.PrefixStore(f"group-{self.number}", store)
        own = prefixed.add("joined", 1) if rank is None else rank
        groups: Any = dist  # which of the classes there are depends on how torch was built
        if self.backend == "nccl":
            options = groups.ProcessGroupNCCL.Options()
            options._timeout = timedelta(seconds=self.seconds)
            return groups.ProcessGroupNCCL(prefixed, own, self.size, options)
        options = groups.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=self.seconds)
        options._devices = [_device(self.host)]
        return groups.ProcessGroupGloo(prefixed, own, self.size, options)

    def broadcast(self, group: Any, content: Tensor) -> None:
        """Sends the bytes, or receives them into ``content``; returns when this member is done."""
        group.broadcast(content, ROOT).wait(timedelta(seconds=self.seconds))
        if content.device.type != "cpu":
            torch.accelerator.synchronize(content.device)


def _device(host: str) -> Any:
    """Of gloo: loopback where the store is there, else the address of this host's name."""
    is_loopback = host == "localhost" or (host[0].isdigit() and ipaddress.ip_address(host).is_loopback)
    make = dist.ProcessGroupGloo
    return make.create_device(hostname=host) if is_loopback else make.create_default_device()


@dataclass
class _Membership:
    """A place in a group that this process has joined, and the publication that it received last."""

    meeting: Meeting
    store: Any
    group: Any
    received: int = 0
    memory: dict[int, Tensor] = field(default_factory=dict)
    """By place of a bucket: what the last publication was received into, and the next one of that size will be."""

    def memory_for(self, place: int, size: int, device: torch.device) -> Tensor:
        """``uint8 [size]``; an engine has taken over what was in it before it receives the next publication."""
        if place not in self.memory or len(self.memory[place]) != size:
            self.memory[place] = torch.empty(size, dtype=torch.uint8, device=device)
        return self.memory[place]


_idle: list[_Membership] = []
"""Memberships that no iteration uses now: a group outlives its publications. Each engine of a process takes one."""

_choosing = threading.Lock()


@dataclass(frozen=True)
class BroadcastBuckets(SharedBuckets):
    """The buckets of a publication as a member of the group receives them, once; iterated while the trainer sends.

    Args:
        meeting: Of the group.
        number: Of the publication, ascending.
        sizes: Bytes of each bucket.
        places: Of the tensors, by bucket.
    """

    meeting: Meeting
    number: int
    sizes: Sequence[int]
    places: Sequence[PlacedBucket]

    def __iter__(self) -> Iterator[Bucket]:
        try:
            member = self._member()
            for place, (size, bucket) in enumerate(zip(self.sizes, self.places, strict=True)):
                content = member.memory_for(place, size, _receives_on(self.meeting.backend))
                self.meeting.broadcast(member.group, content)
                yield {name: placed(content, at) for name, at in bucket.items()}
        except (RuntimeError, dist.DistError) as error:
            raise WeightSyncError(f"the broadcast was not received: {_first_line(error)}") from error
        member.received = self.number
        _idle.append(member)

    def _member(self) -> _Membership:
        """One of the group, also of those joined before; groups that the trainer has left are left here, too."""
        with _choosing:
            _idle[:] = [member for member in _idle if member.meeting == self.meeting]
            for place, member in enumerate(_idle):
                if member.received < self.number:
                    return _idle.pop(place)
        timeout = timedelta(seconds=self.meeting.seconds)
        store = dist.TCPStore(self.meeting.host, self.meeting.port, is_master=False, timeout=timeout)
        return _Membership(self.meeting, store, self.meeting.join(store))


def _receives_on(backend: str) -> torch.device:
    device = torch.accelerator.current_accelerator() if backend == "nccl" else None
    return device or torch.device(HOST)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]

"""Where a rank is. Imports no backend: the front makes it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Where a rank is and how it finds the others.

    Args:
        rank: Tensor-parallel ranks are neighbours, then data-parallel ones, then stages.
        rendezvous: torch's ``init_method``: ``file://…`` or ``tcp://host:port``.
        device: torch device type, ``cpu`` or ``cuda``; on CUDA the rank takes the device with its number.
        threads: Of torch, in this process.
    """

    rank: int
    rendezvous: str
    device: str
    threads: int

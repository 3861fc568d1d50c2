"""Shared by the tests of this package: a TransferQueue on the session's Ray cluster, and transports on it."""

import itertools
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from relax_core.api.context import Context
from relax_core.api.transport import Transport

Build = Callable[[], Transport]


class Ends:
    """Transports, and what makes another end of each."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._builds: WeakKeyDictionary[Transport, partial[Transport]] = WeakKeyDictionary()

    def make(self, run_id: str = "", **settings: Any) -> Transport:
        """A transport of a run of its own, or another end of that of ``run_id`` with other settings."""
        from relax_transferqueue.config import TransferQueueTransportConfig
        from relax_transferqueue.transport import TransferQueueTransport

        context = Context(run_id or f"transferqueue-test-{next(self._numbers)}", 0, Path())
        build = partial(TransferQueueTransport, TransferQueueTransportConfig(**settings), context)
        transport = build()
        self._builds[transport] = build
        return transport

    def build(self, transport: Transport) -> Build:
        """Makes another end."""
        return self._builds[transport]

    def run_id(self, transport: Transport) -> str:
        """Name of the transport's run."""
        run_id: str = self._builds[transport].args[1].run_id
        return run_id


@pytest.fixture(scope="session")
def ends() -> Ends:
    """Makes transports."""
    return Ends()


@pytest.fixture(scope="session")
def shared_queue(ray_cluster: None) -> Iterator[None]:
    """A TransferQueue that was started as its users start it."""
    os.environ.setdefault("TQ_NUM_THREADS", "1")
    tq = pytest.importorskip("transfer_queue")
    from omegaconf import OmegaConf

    tq.init(OmegaConf.create({"controller": {"polling_mode": True}}))
    yield
    tq.close()

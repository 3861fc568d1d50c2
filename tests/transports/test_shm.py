"""The transport in shared memory against the contract of all transports, with real processes, in real time."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from relax_core.api.context import Context
from relax_core.api.transport import Transport
from relax_core.testing.transport import ProcessTransportContract
from relax_core.testing.transport.fixtures import MakeTransport
from relax_core.testing.transport.peers import Connect
from relax_core.testing.transport.servers import CALL_SECONDS
from relax_core.transports.shm.config import ShmTransportConfig
from relax_core.transports.shm.transport import ShmTransport


class TestShmTransport(ProcessTransportContract):
    supports_clock = False

    @pytest.fixture
    def builds(self) -> dict[int, partial[ShmTransport]]:
        """What makes another end of each transport of a test, by the transport's id."""
        return {}

    @pytest.fixture
    def make_transport(
        self, builds: dict[int, partial[ShmTransport]], tmp_path_factory: pytest.TempPathFactory
    ) -> MakeTransport:
        def make(**settings: Any) -> Transport:
            folder = tmp_path_factory.mktemp("run")
            build = partial(ShmTransport, ShmTransportConfig(**settings), Context("test", 0, folder))
            transport = build()
            builds[id(transport)] = build
            return transport

        return make

    @pytest.fixture
    def make_impatient(self, make_transport: MakeTransport) -> MakeTransport:
        return partial(make_transport, call_seconds=CALL_SECONDS)

    @pytest.fixture
    def connect(self, builds: dict[int, partial[ShmTransport]]) -> Callable[[Transport], Connect]:
        return lambda transport: builds[id(transport)]

    @pytest.fixture
    def server(self) -> Callable[[Transport], int]:
        return server_of


def server_of(transport: Transport) -> int:
    assert isinstance(transport, ShmTransport) and transport.server is not None
    return transport.server.id

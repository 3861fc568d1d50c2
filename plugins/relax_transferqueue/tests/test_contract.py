"""TransferQueue against the contract of all transports, on a real Ray cluster, with processes of its own."""

import os
from collections.abc import Callable
from functools import partial

import pytest
import ray

from relax_core.api.transport import Transport
from relax_core.testing.transport import ProcessTransportContract
from relax_core.testing.transport.clusters import JoinCluster
from relax_core.testing.transport.fixtures import MakeTransport
from relax_core.testing.transport.peers import Connect
from relax_core.testing.transport.servers import CALL_SECONDS
from relax_core.transports.ray.calls import find_actor
from relax_core.transports.ray.server import SERVER

pytest.importorskip("transfer_queue")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_queue")]


class TestTransferQueueTransport(ProcessTransportContract):
    supports_clock = False

    @pytest.fixture
    def make_transport(self, ends) -> MakeTransport:
        return partial(ends.make, attach=True)

    @pytest.fixture
    def make_impatient(self, ends) -> MakeTransport:
        return partial(ends.make, attach=True, call_seconds=CALL_SECONDS)

    @pytest.fixture
    def connect(self, ends) -> Callable[[Transport], Connect]:
        return lambda transport: JoinCluster.here(ends.build(transport))

    @pytest.fixture
    def server(self, ends) -> Callable[[Transport], int]:
        def process_of(transport: Transport) -> int:
            actor = find_actor(SERVER, ends.run_id(transport))
            process: int = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
            return process

        return process_of

"""The transport on Ray against the contract of all transports, in real time, on a small cluster."""

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from relax_core.api.context import Context
from relax_core.api.errors import TransportError
from relax_core.api.transport import Transport
from relax_core.testing.transport import TransportContract
from relax_core.testing.transport.fixtures import MakeTransport
from relax_core.transports.ray.config import RayTransportConfig

pytestmark = pytest.mark.slow

NAMES = (f"transport-test-{number}" for number in itertools.count())


def make(capacity_bytes: int = 0, clock: Callable[[], float] | None = None) -> Transport:
    from relax_core.transports.ray.transport import RayTransport

    return RayTransport(RayTransportConfig(capacity_bytes=capacity_bytes), Context(next(NAMES), 0, Path()))


@pytest.mark.usefixtures("ray_cluster")
class TestRayTransport(TransportContract):
    supports_clock = False

    @pytest.fixture
    def make_transport(self) -> MakeTransport:
        return make


@pytest.mark.usefixtures("ray_cluster")
def test_a_transport_that_nobody_opened_is_an_error_that_names_the_run() -> None:
    with pytest.raises(TransportError, match=r"transport-test-.* is gone"):
        make().take("actor")


def test_a_transport_without_a_cluster_starts_none() -> None:
    code = f"""
import sys, ray
from pathlib import Path
from relax_core.api.context import Context
from relax_core.api.errors import TransportError
from relax_core.transports.ray.config import RayTransportConfig
from relax_core.transports.ray.transport import RayTransport
for use in (lambda end: end.open((), ()), lambda end: end.depth()):
    try:
        use(RayTransport(RayTransportConfig(), Context({next(NAMES)!r}, 0, Path())))
    except TransportError as error:
        print(error)
sys.exit(ray.is_initialized())
"""
    ended = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert "needs a Ray cluster" in ended.stdout and "in no Ray cluster" in ended.stdout

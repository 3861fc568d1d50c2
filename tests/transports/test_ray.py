"""The transport on Ray against the contract of all transports, in real time, on a small cluster."""

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import ray

from relax_core.api.context import Context
from relax_core.api.errors import DeadlineExceeded, TransportError
from relax_core.api.transport import Transport
from relax_core.testing.transport import ProcessTransportContract
from relax_core.testing.transport.clusters import JoinCluster
from relax_core.testing.transport.fixtures import MakeTransport
from relax_core.testing.transport.peers import Connect
from relax_core.testing.transport.servers import CALL_SECONDS
from relax_core.transports.ray import server as server_module
from relax_core.transports.ray.calls import ActorUnavailable, find_actor
from relax_core.transports.ray.config import RayTransportConfig
from relax_core.transports.ray.server import SERVER
from relax_core.transports.ray.transport import RayTransport

pytestmark = pytest.mark.slow

NAMES = (f"transport-test-{number}" for number in itertools.count())


BUILDS: WeakKeyDictionary[Transport, partial[RayTransport]] = WeakKeyDictionary()
"""What makes another end of each transport."""


def make(**settings: Any) -> RayTransport:
    build = partial(RayTransport, RayTransportConfig(**settings), Context(next(NAMES), 0, Path()))
    transport = build()
    BUILDS[transport] = build
    return transport


def process_of(transport: Transport) -> int:
    _, context = BUILDS[transport].args
    process: int = ray.get(find_actor(SERVER, context.run_id).__ray_call__.remote(lambda _: os.getpid()))
    return process


@pytest.mark.usefixtures("ray_cluster")
class TestRayTransport(ProcessTransportContract):
    supports_clock = False

    @pytest.fixture
    def make_transport(self) -> MakeTransport:
        return make

    @pytest.fixture
    def make_impatient(self) -> MakeTransport:
        return partial(make, call_seconds=CALL_SECONDS)

    @pytest.fixture
    def connect(self) -> Callable[[Transport], Connect]:
        return lambda transport: JoinCluster.here(BUILDS[transport])

    @pytest.fixture
    def server(self) -> Callable[[Transport], int]:
        return process_of


@pytest.mark.usefixtures("ray_cluster")
def test_a_transport_that_nobody_opened_is_an_error_that_names_the_run() -> None:
    with pytest.raises(TransportError, match=r"transport-test-.* is gone"):
        make().take("actor")


def test_a_transport_without_a_cluster_starts_none() -> None:
    code = f"""
import sys, ray
from pathlib import Path
from relax_core.api.context import Context
from relax_core.api.errors import DeadlineExceeded, TransportError
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


def test_a_cluster_that_does_not_answer_is_an_error_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    forever = threading.Event()
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_actor", lambda name, namespace: forever.wait())
    with pytest.raises(DeadlineExceeded, match=r"'transport': no answer within 0\.1 s"):
        make(call_seconds=0.1).depth()
    forever.set()


@pytest.mark.parametrize(("use", "tries"), [("depth", 2), ("finish", 2), ("close_group", 1), ("put_blob", 2)])
def test_only_calls_that_may_be_made_twice_are_repeated(monkeypatch: pytest.MonkeyPatch, use: str, tries: int) -> None:
    answers: list[Any] = [ActorUnavailable("the connection broke"), "done"]

    def answer(*_: Any, **__: Any) -> Any:
        if isinstance(outcome := answers.pop(0), ActorUnavailable):
            raise outcome
        return outcome

    monkeypatch.setattr(server_module, "find_actor", lambda *_: None)
    monkeypatch.setattr(server_module, "call", answer)
    arguments = {"close_group": (1,), "put_blob": (b"", 1)}.get(use, ())
    outcome = nullcontext() if tries == 2 else pytest.raises(TransportError, match=f"{use} may have")
    with outcome:
        getattr(make(), use)(*arguments)
    assert len(answers) == 2 - tries

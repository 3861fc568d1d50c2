"""The transport in shared memory against the contract of all transports, with real processes, in real time; then what
becomes of memory and processes, whoever dies.
"""

import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from relax_core.api.columns import Table
from relax_core.api.context import Context
from relax_core.api.errors import DeadlineExceeded, TransportError
from relax_core.api.transport import Lease, Transport
from relax_core.testing.threads import DEADLINE
from relax_core.testing.transport import ProcessTransportContract, works
from relax_core.testing.transport.fixtures import (
    COLUMNS,
    REWARDER,
    MakeTransport,
    add_group,
    groups_of,
    taken,
)
from relax_core.testing.transport.peers import Connect, Peers
from relax_core.testing.transport.servers import CALL_SECONDS
from relax_core.transports.shm.config import ShmTransportConfig
from relax_core.transports.shm.transport import ShmTransport
from relax_core.transports.shm.wire import SOCKET

ROWS, LENGTH = 16, 2048
"""Of a wide group, 256 KiB."""


@pytest.mark.slow
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


@pytest.fixture
def transport(tmp_path: Path) -> ShmTransport:
    transport = end(tmp_path)
    transport.open(COLUMNS, (REWARDER,))
    return transport


def end(folder: Path) -> ShmTransport:
    return ShmTransport(ShmTransportConfig(), Context("test", 0, folder))


def wide(transport: Transport, group: int) -> tuple[Lease, Table]:
    """Appends a group and hands it out again."""
    works.add_wide(transport, group, ROWS, LENGTH)
    lease = taken(transport.take("rewarder"))
    assert groups_of(lease) == [group]
    return lease, transport.fetch(lease, ["tokens"])


def memory_of(transport: Transport) -> int:
    """Bytes of shared memory that the server keeps from being given back."""
    process = server_of(transport)
    links = [os.stat(f"/proc/{process}/fd/{number}") for number in os.listdir(f"/proc/{process}/fd")]
    return sum(link.st_blocks * 512 for link in links if stat.S_ISREG(link.st_mode))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 2 * DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_is_handed_out_in_one_piece_is_not_copied(transport: ShmTransport) -> None:
    _, table = wide(transport, 1)
    values = table["tokens"].values
    assert not values.flags.owndata and not values.flags.writeable
    assert (values == 1).all()


def test_a_table_is_never_overwritten_while_it_is_used(transport: ShmTransport) -> None:
    lease, table = wide(transport, 0)
    row = table["tokens"][3]
    transport.ack(lease)
    assert transport.depth()["bytes"] == 0
    del table, lease
    for group in range(1, 2000 // ROWS):
        transport.ack(wide(transport, group)[0])
    assert (row == 0).all(), "one row is enough to keep the memory of its table"
    before = memory_of(transport)
    assert before < 8 * ROWS * LENGTH * 8, "memory that nobody uses is used again"
    del row
    kept = [wide(transport, group)[1] for group in range(1000, 1010)]
    assert memory_of(transport) > before + 7 * ROWS * LENGTH * 8, "and what is used is not"
    assert all((table["tokens"].values == 1000 + number).all() for number, table in enumerate(kept))


@pytest.mark.parametrize("seconds", [1j, 1 << 70], ids=["no form", "too long"])
def test_a_call_that_cannot_be_sent_changes_nothing(transport: ShmTransport, seconds: Any) -> None:
    lease, table = wide(transport, 0)
    works.add_wide(transport, 1, ROWS, LENGTH)
    transport.drop([1])  # the answer tells of memory that is free, and must not be taken for unread
    with pytest.raises(TransportError, match="cannot be sent"):
        transport.renew(lease, seconds)
    for group in (2, 3):
        works.add_wide(transport, group, ROWS, LENGTH)
    assert (table["tokens"].values == 0).all()
    found = transport.fetch(taken(transport.take("rewarder", 2, 2)), ["tokens"])["tokens"]
    assert (found.values == np.repeat([2, 3], ROWS * LENGTH)).all()


def test_memory_is_free_whoever_hears_of_it(transport: ShmTransport, tmp_path: Path) -> None:
    for group in range(8):
        works.add_wide(transport, group, ROWS, LENGTH)
    end(tmp_path).drop(range(8))
    assert transport.take("rewarder", timeout=0.01) is None  # the first call that waits: on a connection of its own
    for group in range(8, 16):
        works.add_wide(transport, group, ROWS, LENGTH)
    assert memory_of(transport) < 12 * ROWS * LENGTH * 8


def test_a_server_that_can_open_nothing_more_serves_whom_it_has(transport: ShmTransport, tmp_path: Path) -> None:
    add_group(transport, 1)
    server = server_of(transport)
    opened, most = len(os.listdir(f"/proc/{server}/fd")), resource.prlimit(server, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(server, resource.RLIMIT_NOFILE, (opened + 1, most))
    impatient = partial(ShmTransport, ShmTransportConfig(call_seconds=1.0), Context("test", 0, tmp_path))
    with pytest.raises(DeadlineExceeded):
        impatient().depth()
    assert transport.depth()["groups"] == 1
    resource.prlimit(server, resource.RLIMIT_NOFILE, (opened + 3, most))
    assert transport.depth()["groups"] == 1
    assert end(tmp_path).depth()["groups"] == 1, "where there is room again, it answers whoever comes"


def test_rows_outlive_the_process_that_wrote_them_and_its_memory_does_not(
    transport: ShmTransport, tmp_path: Path
) -> None:
    peers = Peers()
    (producer,) = peers.get(1)
    producer.run(partial(end, tmp_path), works.add_wide, 7, ROWS, LENGTH)
    lease = taken(transport.take("rewarder"))
    producer.kill()
    table = transport.fetch(lease, ["tokens"])
    transport.ack(lease)
    assert memory_of(transport) > ROWS * LENGTH * 8
    assert (table["tokens"].values == 7).all()
    del table, lease
    transport.depth()
    wait_until(lambda: memory_of(transport) == 0)


def test_a_reader_that_dies_uses_nothing_any_more(transport: ShmTransport, tmp_path: Path) -> None:
    works.add_wide(transport, 0, ROWS, LENGTH)
    peers = Peers()
    (reader,) = peers.get(1)
    assert reader.run(partial(end, tmp_path), works.hold, 600.0) == [0]
    reader.kill()
    transport.reclaim("rewarder")
    transport.ack(taken(transport.take("rewarder")))
    for group in range(1, 1000 // ROWS):
        transport.ack(wide(transport, group)[0])
    assert memory_of(transport) < 8 * ROWS * LENGTH * 8


OPENER = """
import sys, time
from pathlib import Path
from relax_core.api.context import Context
from relax_core.testing.transport.fixtures import COLUMNS, REWARDER, add_group
from relax_core.transports.shm.config import ShmTransportConfig
from relax_core.transports.shm.transport import ShmTransport
transport = ShmTransport(ShmTransportConfig(), Context("test", 0, Path(sys.argv[1])))
transport.open(COLUMNS, (REWARDER,))
add_group(transport, 1)
print(transport.server.id, flush=True)
if len(sys.argv) > 2:
    time.sleep(600)
"""


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "at its end"])
def test_the_server_ends_with_the_process_that_opened_it(tmp_path: Path, killed: bool) -> None:
    before = set(os.listdir("/dev/shm"))
    command = [sys.executable, "-c", OPENER, str(tmp_path), *(["wait"] if killed else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as opener:
        assert opener.stdout is not None
        server = int(opener.stdout.readline())
        if killed:
            assert groups_of(taken(end(tmp_path).take("rewarder"))) == [1]
            opener.kill()
    wait_until(lambda: not psutil.pid_exists(server) or psutil.Process(server).status() == psutil.STATUS_ZOMBIE)
    assert not (tmp_path / SOCKET).exists()
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "relax" in name]
    with pytest.raises(TransportError, match="'test' is gone"):
        end(tmp_path).depth()


def test_an_end_of_a_run_does_not_join_the_next(transport: ShmTransport, tmp_path: Path) -> None:
    old = end(tmp_path)
    assert old.depth()["groups"] == 0
    os.kill(server_of(transport), signal.SIGKILL)
    with pytest.raises(TransportError, match="gone"):
        old.depth()
    again = end(tmp_path)
    again.open(COLUMNS, (REWARDER,))
    with pytest.raises(TransportError, match="another one has taken its place"):
        old.depth()
    assert end(tmp_path).depth()["groups"] == 0


def test_only_this_user_may_connect_and_nonsense_ends_only_its_own_connection(
    transport: ShmTransport, tmp_path: Path
) -> None:
    add_group(transport, 1)
    assert stat.S_IMODE((tmp_path / SOCKET).stat().st_mode) & 0o077 == 0
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(DEADLINE)
        stranger.connect(str(tmp_path / SOCKET))
        stranger.sendall(np.array([3], np.uint32).tobytes() + b"\xc1\xc1\xc1")
        assert stranger.recv(1) == b""
    assert transport.depth()["groups"] == 1


def test_a_folder_may_lie_deep(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 30)
    folder.mkdir()
    transport = end(folder)
    transport.open(COLUMNS, (REWARDER,))
    add_group(transport, 1)
    assert end(folder).depth()["groups"] == 1

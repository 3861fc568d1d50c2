"""Rules of a transport with a server: when it is gone or stands still, nobody waits beyond a deadline."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from relax_core.api.columns import Column
from relax_core.api.errors import DeadlineExceeded, EndOfStream, LeaseExpired, TransportError, TransportLost
from relax_core.api.transport import Lease, Transport
from relax_core.testing.threads import in_threads
from relax_core.testing.transport import works
from relax_core.testing.transport.fixtures import (
    ACTOR,
    COLUMNS,
    PATIENCE,
    REWARD,
    REWARDER,
    MakeTransport,
    TransportFixtures,
    add_group,
    groups_of,
    taken,
    token_rows,
)
from relax_core.testing.transport.peers import Connect

CALL_SECONDS = 5.0
"""What a call may take beyond the time it was asked to wait, in these tests: more than it needs on a busy machine."""

WAIT_SECONDS = 0.5


class ServerRules(TransportFixtures):
    """Every call ends by its deadline, with an error that says so."""

    @pytest.fixture
    def make_impatient(self) -> MakeTransport:
        """``make_transport`` of a transport whose calls give up after ``CALL_SECONDS``; override it."""
        raise NotImplementedError("override the fixture make_impatient")

    @pytest.fixture
    def server(self) -> Callable[[Transport], int]:
        """``server(transport)`` is the id of the process that holds the groups of this transport; override it."""
        raise NotImplementedError("override the fixture server")

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
    def test_without_its_server_no_call_waits_for_ever(
        self, make_impatient: MakeTransport, server: Callable[[Transport], int], number: signal.Signals
    ) -> None:
        transport = make_impatient(capacity_bytes=2048)
        transport.open(COLUMNS, (REWARDER, ACTOR))
        ids, lease, key = self._fill(transport)
        process = server(transport)
        # A dead server is noticed by those who wait, however long they would; one that stands still, at their deadline.
        timeout = PATIENCE if number == signal.SIGKILL else WAIT_SECONDS
        try:
            in_threads(
                lambda: _assert_typed(partial(transport.take, "actor", timeout=timeout)),
                lambda: _assert_typed(partial(transport.append, 9, token_rows(9, (2,)), timeout=timeout)),
                lambda: os.kill(process, number),
            )
            in_threads(*(partial(_assert_typed, use) for use in _calls(transport, ids, lease, key)))
        finally:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def test_after_its_server_stood_still_everything_goes_on(
        self, make_impatient: MakeTransport, server: Callable[[Transport], int]
    ) -> None:
        transport = make_impatient()
        transport.open(COLUMNS, (REWARDER, ACTOR))
        works.add_wide(transport, 0, 4, 2048)
        lease = taken(transport.take("rewarder"))
        tokens = transport.fetch(lease, ["tokens"])["tokens"]
        process = server(transport)
        os.kill(process, signal.SIGSTOP)
        try:
            calls: list[Callable[[], Any]] = [transport.depth, transport.snapshot]
            calls += [partial(transport.append, group, token_rows(group, (2,))) for group in (1, 2)]
            in_threads(*(partial(_assert_typed, call) for call in calls))
        finally:
            os.kill(process, signal.SIGCONT)
        transport.ack(lease)
        for group in range(3, 7):
            works.add_wide(transport, group, 4, 2048)
        assert (tokens.values == 0).all(), "whoever holds a table was not taken for dead"
        assert {3, 4, 5, 6} <= set(groups_of(taken(transport.take("rewarder", 4, 9))))

    @pytest.mark.parametrize("stands_still", [False, True], ids=["runs", "stands still"])
    def test_a_closed_transport_is_lost_to_every_end(
        self,
        make_impatient: MakeTransport,
        connect: Callable[[Transport], Connect],
        server: Callable[[Transport], int],
        stands_still: bool,
    ) -> None:
        transport = make_impatient()
        transport.open(COLUMNS, (REWARDER, ACTOR))
        add_group(transport, 0)
        other = connect(transport)()
        assert other.depth()["groups"] == 1
        other.close()
        assert transport.depth()["groups"] == 1, "who has not opened it ends nothing"
        if stands_still:
            os.kill(server(transport), signal.SIGSTOP)
        transport.close()
        with pytest.raises(TransportLost):
            other.depth()
        transport.close()

    @staticmethod
    def _fill(transport: Transport) -> tuple[Any, Lease, str]:
        """A group on lease that is not ready for the actor, and has a blob that leaves no room for another one."""
        key = transport.put_blob(bytes(1900), 0)
        ids = add_group(transport, 0)
        return ids, taken(transport.take("rewarder")), key


def _calls(transport: Transport, ids: Any, lease: Lease, key: str) -> list[Callable[[], Any]]:
    """Every method there is."""
    return [
        partial(transport.append, 1, token_rows(1, (2,))),
        partial(transport.write, ids, [Column.of(REWARD, [1.0, 1.0])]),
        partial(transport.close_group, 1),
        partial(transport.drop, [0]),
        partial(transport.take, "rewarder", 1, 1, WAIT_SECONDS),
        partial(transport.fetch, lease, ["tokens"]),
        partial(transport.renew, lease, 1.0),
        partial(transport.ack, lease),
        partial(transport.nack, lease),
        partial(transport.reclaim, "rewarder"),
        partial(transport.put_blob, b"sound", 1),
        partial(transport.get_blob, key),
        partial(transport.restore, {}),
        transport.finish,
        transport.snapshot,
        transport.depth,
    ]


def _assert_typed(use: Callable[[], Any]) -> None:
    with pytest.raises((TransportError, DeadlineExceeded)) as caught:
        use()
    assert not isinstance(caught.value, (EndOfStream, LeaseExpired)), f"{use}: the server is gone, it said nothing"

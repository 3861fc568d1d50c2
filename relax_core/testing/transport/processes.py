"""Rules that need processes: each has its own end, and each may die at any moment."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from relax_core.api.errors import DeadlineExceeded, EndOfStream, LeaseExpired, TransportError
from relax_core.api.transport import Transport
from relax_core.testing.threads import DEADLINE
from relax_core.testing.transport import works
from relax_core.testing.transport.fixtures import (
    ACTOR,
    COLUMNS,
    REWARDER,
    MakeTransport,
    TransportFixtures,
    add_group,
    groups_of,
    taken,
    token_rows,
)
from relax_core.testing.transport.peers import Connect, Peers

ROWS, LENGTH = 64, 2048
"""Of a wide group, 1 MiB: most of a producer's time is spent inside of ``append``."""

HOLD_SECONDS = 10.0
"""Life of a lease that runs out: beyond what a process needs until it has imported and connected everything."""


class ProcessRules(TransportFixtures):
    """What holds between processes, whichever of them dies."""

    @pytest.fixture(scope="class")
    @classmethod
    def peers(cls) -> Iterator[Peers]:
        """Other processes."""
        peers = Peers()
        yield peers
        peers.close()

    @pytest.fixture
    def connect(self) -> Callable[[Transport], Connect]:
        """``connect(transport)`` makes what a peer calls to have its own end of this transport; override it."""
        raise NotImplementedError("override the fixture connect")

    @pytest.mark.parametrize("reclaimed", [True, False], ids=["reclaimed", "expired"])
    def test_groups_of_a_killed_worker_are_handed_out_once_more(
        self, transport: Transport, connect: Callable[[Transport], Connect], peers: Peers, reclaimed: bool
    ) -> None:
        for group in range(3):
            add_group(transport, group)
        (worker,) = peers.get(1)
        seconds = 600.0 if reclaimed else HOLD_SECONDS
        assert worker.run(connect(transport), works.hold, seconds) == [0, 1, 2]
        worker.kill()
        if reclaimed:
            transport.reclaim("rewarder")
        again = taken(transport.take("rewarder", 3, 3, timeout=DEADLINE))
        assert (groups_of(again), again.attempt) == ([0, 1, 2], 2)
        assert transport.take("rewarder") is None, "once more, not twice"
        transport.ack(again)
        transport.finish()
        with pytest.raises(EndOfStream):
            transport.take("rewarder")

    def test_a_killed_producer_leaves_no_half_group(
        self, transport: Transport, connect: Callable[[Transport], Connect], peers: Peers
    ) -> None:
        (producer,) = peers.get(1)
        producer.start(connect(transport), works.produce_wide, ROWS, LENGTH)
        _wait_until(lambda: transport.depth()["groups"] >= 3)
        producer.kill()
        groups = transport.depth()["groups"]
        for group in (groups - 1, groups):  # one is there, and one may be on its way still
            works.add_wide(transport, group, ROWS, LENGTH, repeat=True)
        lease = taken(transport.take("rewarder", groups + 1, 999, timeout=DEADLINE))
        assert groups_of(lease) == list(range(len(lease.table) // ROWS)), "every group is there, once"
        table = transport.fetch(lease, ["tokens"])
        assert (table["tokens"].lengths == LENGTH).all()
        assert (table["tokens"].values.reshape(-1, LENGTH) == table.groups[:, None]).all(), "and whole"

    def test_processes_lose_repeat_and_mix_nothing(
        self, make_transport: MakeTransport, connect: Callable[[Transport], Connect], peers: Peers
    ) -> None:
        transport = make_transport(capacity_bytes=4096)
        transport.open(COLUMNS, (REWARDER, ACTOR))
        end, (*producers, one, two, three, four) = connect(transport), peers.get(6)
        for number, producer in enumerate(producers):
            producer.start(end, works.produce, range(number, 40, 2), number)
        for worker, work in ((one, works.give_rewards), (two, works.give_rewards), (three, works.train)):
            worker.start(end, work, 7)
        four.start(end, works.train, 8)
        for producer in producers:
            producer.result()
        transport.finish()
        for pair in ((one, two), (three, four)):
            assert sorted([*pair[0].result(), *pair[1].result()]) == list(range(40)), "each group once a consumer"
        assert {transport.depth()[name] for name in ("groups", "rows", "bytes")} == {0}

    def test_a_full_transport_makes_other_processes_wait(
        self, make_transport: MakeTransport, connect: Callable[[Transport], Connect], peers: Peers
    ) -> None:
        capacity = 4 * ROWS * LENGTH * 8
        transport = make_transport(capacity_bytes=capacity)
        transport.open(COLUMNS, (REWARDER,))
        (producer,) = peers.get(1)
        producer.start(connect(transport), works.produce_wide, ROWS, LENGTH)
        seen: list[int] = []
        while len(seen) < 8:
            lease = taken(transport.take("rewarder", timeout=2 * DEADLINE))
            assert transport.depth()["bytes"] <= capacity
            seen += groups_of(lease)
            transport.ack(lease)
        producer.kill()
        assert seen == list(range(8))

    def test_a_full_transport_is_a_typed_error_in_other_processes(
        self, make_transport: MakeTransport, connect: Callable[[Transport], Connect], peers: Peers
    ) -> None:
        transport = make_transport(capacity_bytes=1024)
        transport.open(COLUMNS, (REWARDER,))
        transport.put_blob(bytes(800), 0)
        add_group(transport, 0)
        (producer,) = peers.get(1)
        with pytest.raises(DeadlineExceeded, match="group 5"):
            producer.run(connect(transport), works.call, "append", 5, token_rows(5, (2, 3)), None, 0.1)
        transport.drop([0])
        producer.run(connect(transport), works.call, "append", 5, token_rows(5, (2, 3)), None, 0.1, True)
        lease = taken(transport.take("rewarder"))
        transport.ack(lease)
        with pytest.raises(LeaseExpired, match=lease.key):
            producer.run(connect(transport), works.call, "ack", lease)

    def test_blobs_outlive_the_process_that_put_them(
        self, transport: Transport, connect: Callable[[Transport], Connect], peers: Peers
    ) -> None:
        (peer,) = peers.get(1)
        picture = bytes(range(256)) * 4096
        key = peer.run(connect(transport), works.call, "put_blob", picture, 1)
        assert transport.put_blob(picture, 2) == key
        assert transport.depth()["bytes"] == len(picture), "counted once, whoever put it"
        assert peer.run(connect(transport), works.call, "get_blob", key) == picture
        peer.kill()
        assert transport.get_blob(key) == picture
        for group in (1, 2):
            add_group(transport, group)
        (other,) = peers.get(1)
        other.run(connect(transport), works.call, "drop", [1, 2])
        assert transport.depth()["bytes"] == 0
        with pytest.raises(TransportError, match=key):
            transport.get_blob(key)

    def test_a_snapshot_under_traffic_is_one_moment(
        self,
        make_transport: MakeTransport,
        transport: Transport,
        connect: Callable[[Transport], Connect],
        peers: Peers,
    ) -> None:
        producer, rewarder = peers.get(2)
        producer.start(connect(transport), works.produce, range(60), 3)
        rewarder.start(connect(transport), works.give_rewards, 4)
        _wait_until(lambda: transport.depth()["ready/actor"] >= 5)
        snapshot = transport.snapshot()
        producer.result()
        transport.finish()
        assert sorted(rewarder.result()) == list(range(60)), "a snapshot disturbs nobody"
        copy = make_transport()
        copy.open(COLUMNS, (REWARDER, ACTOR))
        copy.restore(snapshot)
        self._complete(copy)

    @staticmethod
    def _complete(copy: Transport) -> None:
        """Ends a run that was cut in the middle: what a consumer had acknowledged by then is done, all else is not."""
        copy.finish()
        ready = copy.depth()["ready/actor"]
        assert ready >= 5, "the snapshot has what was there before it"
        try:
            while (lease := copy.take("rewarder", 1, 9)) is not None:
                table = copy.fetch(lease, ["tokens"])
                copy.write(table.ids, [works.rewards_of(table)], repeat=True)
                copy.ack(lease)
        except EndOfStream:
            pass
        lease = taken(copy.take("actor", 1, 99))
        works.check_rows(copy, lease)
        assert len(groups_of(lease)) >= ready


def _wait_until(condition: Callable[[], Any]) -> None:
    """Polls; ``TimeoutError`` when it does not come true."""
    deadline = time.monotonic() + 3 * DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("what other processes were to do has not come about")
        time.sleep(0.02)

"""Rules of leases."""

import time
from collections.abc import Iterator

import pytest

from relax_core.api.columns import Column
from relax_core.api.errors import EndOfStream, LeaseExpired
from relax_core.api.transport import Lease, Transport
from relax_core.testing.threads import DEADLINE, in_threads
from relax_core.testing.transport.fixtures import (
    COLUMNS,
    LEASE_SECONDS,
    PATIENCE,
    REWARD,
    REWARDER,
    Clock,
    MakeTransport,
    TransportFixtures,
    add_group,
    entries_of,
    groups_of,
    reward,
    taken,
)


class LeaseRules(TransportFixtures):
    """Each consumer gets each group once, whatever its workers do."""

    def test_an_expired_lease_is_handed_out_once_more(self, transport: Transport, clock: Clock | None) -> None:
        add_group(transport, 1)
        late = taken(transport.take("rewarder", seconds=LEASE_SECONDS))
        self.expire(clock)
        for use in (transport.ack, lambda lease: transport.fetch(lease, []), lambda lease: transport.renew(lease, 1.0)):
            with pytest.raises(LeaseExpired):
                use(late)
        again = taken(transport.take("rewarder"))
        assert groups_of(again) == [1]
        assert again.key != late.key
        assert transport.take("rewarder") is None, "redelivered once, not twice"
        transport.nack(late)
        assert transport.take("rewarder") is None, "a lease that ran out has nothing left to give back"
        transport.ack(again)
        with pytest.raises(LeaseExpired):
            transport.ack(again)

    def test_a_waiting_take_sees_a_lease_expire(self, make_transport: MakeTransport) -> None:
        transport = make_transport()
        transport.open(COLUMNS, (REWARDER,))
        add_group(transport, 1)
        taken(transport.take("rewarder", seconds=LEASE_SECONDS))
        (groups,) = in_threads(lambda: groups_of(taken(transport.take("rewarder", timeout=PATIENCE))))
        assert groups == [1]

    def test_renew_extends_a_living_lease(self, transport: Transport, clock: Clock | None) -> None:
        add_group(transport, 1)
        lease = transport.renew(taken(transport.take("rewarder", seconds=LEASE_SECONDS)), 600.0)
        assert lease.seconds == 600.0
        self.expire(clock)
        assert transport.take("rewarder") is None
        transport.ack(lease)

    def test_nack_gives_the_groups_back_in_their_order(self, transport: Transport) -> None:
        for group in range(3):
            add_group(transport, group)
        transport.nack(taken(transport.take("rewarder", 2, 2)))
        assert groups_of(taken(transport.take("rewarder", 3, 3))) == [0, 1, 2]

    def test_what_was_handed_out_before_comes_first(self, transport: Transport) -> None:
        for group in (3, 4):
            add_group(transport, group)
        transport.nack(taken(transport.take("rewarder", 2, 2)))
        add_group(transport, 1)
        again = taken(transport.take("rewarder", 1, 2))
        assert (groups_of(again), again.attempt) == ([3, 4], 2), "older groups may have come since"
        assert groups_of(taken(transport.take("rewarder"))) == [1]

    def test_a_lease_tells_how_often_its_groups_were_handed_out(self, transport: Transport) -> None:
        reward(transport, add_group(transport, 1))
        first = taken(transport.take("rewarder"))
        transport.nack(first)
        assert (first.attempt, taken(transport.take("rewarder")).attempt) == (1, 2)
        add_group(transport, 2)
        assert taken(transport.take("rewarder")).attempt == 1, "each group is counted by itself"
        assert taken(transport.take("actor")).attempt == 1, "and for each consumer"

    def test_reclaim_gives_back_what_a_dead_consumer_held(self, transport: Transport) -> None:
        reward(transport, [*add_group(transport, 1), *add_group(transport, 2)])
        dead = [taken(transport.take("rewarder")) for _ in range(2)]
        other = taken(transport.take("actor", 2, 2))
        transport.reclaim("rewarder")
        for lease in dead:
            with pytest.raises(LeaseExpired):
                transport.ack(lease)
        again = taken(transport.take("rewarder", 2, 2))
        assert (groups_of(again), again.attempt) == ([1, 2], 2)
        transport.ack(other)

    def test_reclaim_sends_a_waiting_take_away(self, transport: Transport) -> None:
        def reclaim_until(waiting: list[Lease | None]) -> None:
            deadline = time.monotonic() + DEADLINE
            while not waiting and time.monotonic() < deadline:
                transport.reclaim("rewarder")

        waiting: list[Lease | None] = []
        in_threads(lambda: waiting.append(transport.take("rewarder", timeout=PATIENCE)), lambda: reclaim_until(waiting))
        assert waiting == [None], "whoever waited is dead: it must not be handed a group"

    def test_ack_is_all_or_nothing(self, transport: Transport, clock: Clock | None) -> None:
        for group in range(2):
            reward(transport, add_group(transport, group))
        transport.ack(taken(transport.take("actor", 2, 2)))
        late = taken(transport.take("rewarder", 2, 2, seconds=LEASE_SECONDS))
        self.expire(clock)
        with pytest.raises(LeaseExpired):
            transport.ack(late)
        assert transport.depth()["groups"] == 2, "a late ack settles none of its groups"
        transport.ack(taken(transport.take("rewarder", 2, 2)))
        assert transport.depth()["groups"] == 0, "an ack settles all of its groups"

    def test_threads_lose_and_repeat_nothing(self, transport: Transport) -> None:
        groups, producers = 60, 2
        seen: list[list[int]] = [[] for _ in range(4)]

        def produce(first: int) -> None:
            for group in range(first, groups, producers):
                add_group(transport, group, (1 + group % 3, 2))

        def give_rewards(mine: list[int]) -> None:
            for turn, lease in enumerate(_leases(transport, "rewarder")):
                if turn % 5 == 0:
                    transport.nack(lease)
                    continue
                table = transport.fetch(lease, ["tokens"])
                transport.write(
                    table.ids, [Column.of(REWARD, [float(entry.sum()) for entry in entries_of(table, "tokens")])]
                )
                transport.ack(lease)
                mine.extend(groups_of(lease))

        def train(mine: list[int]) -> None:
            for lease in _leases(transport, "actor"):
                table = transport.fetch(lease, ["tokens", "reward"])
                sums = [float(entry.sum()) for entry in entries_of(table, "tokens")]
                assert table["reward"].values.tolist() == sums, "columns of one row stay together"
                transport.ack(lease)
                mine.extend(groups_of(lease))

        def produce_all() -> None:
            in_threads(*(lambda first=first: produce(first) for first in range(producers)))
            transport.finish()

        in_threads(
            produce_all,
            lambda: give_rewards(seen[0]),
            lambda: give_rewards(seen[1]),
            lambda: train(seen[2]),
            lambda: train(seen[3]),
        )
        for one, other in ((0, 1), (2, 3)):
            assert sorted(seen[one] + seen[other]) == list(range(groups)), "each consumer gets each group once"
        assert transport.depth()["groups"] == 0


def _leases(transport: Transport, consumer: str) -> Iterator[Lease]:
    """Leases until the end of the stream, each wait with a deadline."""
    while True:
        try:
            yield taken(transport.take(consumer, 1, 3, timeout=DEADLINE))
        except EndOfStream:
            return

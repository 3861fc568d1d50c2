"""Rules of groups: ready, dropped, the last one."""

import pytest

from relax_core.api.columns import Column
from relax_core.api.errors import EndOfStream, LeaseExpired, TransportError
from relax_core.api.transport import Transport
from relax_core.testing.threads import DEADLINE, in_threads
from relax_core.testing.transport.fixtures import (
    COLUMNS,
    LEASE_SECONDS,
    PATIENCE,
    REWARD,
    Clock,
    MakeTransport,
    TransportFixtures,
    add_group,
    groups_of,
    reward,
    taken,
    token_rows,
)


class GroupRules(TransportFixtures):
    """A group is handed out when it is complete; nothing yet is not the end."""

    def test_an_open_group_is_not_ready(self, transport: Transport) -> None:
        add_group(transport, 1, close=False)
        assert transport.take("rewarder") is None, "a group is complete when it is closed, not when it has rows"
        transport.close_group(1)
        assert groups_of(taken(transport.take("rewarder"))) == [1]

    def test_a_group_is_closed_once_and_with_rows(self, transport: Transport) -> None:
        with pytest.raises(TransportError, match="without a row"):
            transport.close_group(1)
        add_group(transport, 1)
        for late in (lambda: transport.close_group(1), lambda: transport.append(1, token_rows(1, (2,))[:2])):
            with pytest.raises(TransportError, match="closed"):
                late()

    def test_append_may_close_and_be_repeated(self, transport: Transport) -> None:
        ids = transport.append(1, token_rows(1, (2, 3)), close=True)
        assert transport.append(1, token_rows(1, (2, 3)), close=True, repeat=True).tolist() == ids.tolist()
        with pytest.raises(TransportError, match="closed"):
            transport.append(1, token_rows(1, (2, 3)), close=True)
        lease = taken(transport.take("rewarder", 1, 9))
        assert lease.table.ids.tolist() == ids.tolist(), "a repeated append adds nothing"
        transport.drop([1])
        assert transport.append(1, token_rows(1, (2, 3)), close=True, repeat=True).tolist() == []
        transport.append(2, token_rows(2, (2,)), close=True, repeat=True)
        assert groups_of(taken(transport.take("rewarder"))) == [2], "what was not there before is appended"

    def test_a_group_id_never_comes_back(self, transport: Transport) -> None:
        reward(transport, add_group(transport, 1))
        for name in ("rewarder", "actor"):
            transport.ack(taken(transport.take(name)))
        add_group(transport, 2)
        transport.drop([2])
        for group in (1, 2):
            with pytest.raises(TransportError, match=str(group)):
                transport.append(group, token_rows(group, (2,)))

    def test_the_oldest_groups_come_first(self, transport: Transport) -> None:
        for group in (7, 3, 5):
            add_group(transport, group)
        assert groups_of(taken(transport.take("rewarder", 1, 2))) == [3, 5]
        add_group(transport, 1)
        assert groups_of(taken(transport.take("rewarder", 1, 9))) == [1, 7]

    def test_take_keeps_to_minimum_and_maximum(self, transport: Transport) -> None:
        for group in range(3):
            add_group(transport, group)
        assert transport.take("rewarder", 4, 8) is None
        assert groups_of(taken(transport.take("rewarder", 2, 2))) == [0, 1]
        for minimum, maximum in ((0, 1), (2, 1)):
            with pytest.raises(TransportError):
                transport.take("rewarder", minimum, maximum)

    def test_each_consumer_gets_each_group_once(self, transport: Transport) -> None:
        reward(transport, add_group(transport, 1))
        for name in ("rewarder", "actor"):
            transport.ack(taken(transport.take(name)))
            assert transport.take(name) is None, "an acknowledged group never comes back"
        assert transport.depth()["groups"] == 0, "a group is forgotten once every consumer has acknowledged it"

    def test_without_consumers_a_closed_group_is_forgotten(self, make_transport: MakeTransport) -> None:
        transport = make_transport()
        transport.open(COLUMNS, ())
        add_group(transport, 1)
        assert transport.depth() == {"groups": 0, "rows": 0, "bytes": 0}

    def test_a_dropped_group_leaves_every_consumer(self, transport: Transport) -> None:
        ids = {group: add_group(transport, group) for group in range(3)}
        lease = taken(transport.take("rewarder", 2, 2))
        transport.drop([1, 1])
        table = transport.fetch(lease, ["tokens"])
        assert set(table.groups.tolist()) == {0}, "the lease goes on with the rest"
        assert transport.fetch(lease, ["tokens"], ids[1]).ids.tolist() == []
        transport.write([*ids[0], *ids[1], *ids[2]], [Column.of(REWARD, [1.0] * 6)])
        assert groups_of(taken(transport.take("actor", 1, 9))) == [0, 2]
        transport.ack(lease)
        assert groups_of(taken(transport.take("rewarder", 1, 9))) == [2]
        transport.drop([1])

    def test_a_dropped_group_does_not_come_back_with_its_lease(self, transport: Transport, clock: Clock | None) -> None:
        for group in range(2):
            add_group(transport, group)
        lease = taken(transport.take("rewarder", 2, 2, seconds=LEASE_SECONDS))
        transport.drop([0])
        self.expire(clock)
        assert groups_of(taken(transport.take("rewarder", 1, 9))) == [1]
        with pytest.raises(LeaseExpired):
            transport.ack(lease)

    def test_dropping_an_unknown_group_drops_none(self, transport: Transport) -> None:
        add_group(transport, 1)
        with pytest.raises(TransportError, match="99"):
            transport.drop([1, 99])
        assert groups_of(taken(transport.take("rewarder"))) == [1]

    def test_empty_is_not_finished(self, transport: Transport) -> None:
        assert transport.take("actor") is None
        reward(transport, add_group(transport, 1))
        transport.ack(taken(transport.take("actor")))
        assert transport.take("actor") is None, "nothing yet, though everything so far is done"
        transport.finish()
        with pytest.raises(EndOfStream):
            transport.take("actor", timeout=DEADLINE)
        transport.finish()

    def test_what_can_still_become_ready_holds_the_end_back(self, transport: Transport) -> None:
        open_ids = add_group(transport, 1, close=False)
        waiting_ids = add_group(transport, 2)
        transport.finish()
        assert transport.take("actor") is None, "group 2 waits for a column, group 1 is open"
        reward(transport, waiting_ids)
        assert transport.take("actor", 2, 2) is None, "group 1 may still fill the batch"
        transport.append(1, token_rows(1, (1,))[:2])
        with pytest.raises(TransportError, match="finished"):
            add_group(transport, 3)
        transport.close_group(1)
        transport.drop([1])
        with pytest.raises(TransportError):
            transport.append(1, token_rows(1, (1,)))
        reward(transport, open_ids)
        lease = taken(transport.take("actor", 2, 2))
        assert groups_of(lease) == [2], "a remainder below the minimum is handed out as it is"
        assert transport.take("actor") is None, "a leased group may come back"
        transport.nack(lease)
        transport.ack(taken(transport.take("actor", 2, 2)))
        with pytest.raises(EndOfStream):
            transport.take("actor")
        assert groups_of(taken(transport.take("rewarder"))) == [2], "the end is each consumer's own"

    def test_a_waiting_take_is_woken(self, transport: Transport) -> None:
        waiting = [
            lambda: groups_of(taken(transport.take("rewarder", timeout=PATIENCE))),
            lambda: groups_of(taken(transport.take("actor", timeout=PATIENCE))),
        ]
        outcomes = in_threads(*waiting, lambda: reward(transport, add_group(transport, 1)))
        assert outcomes[:2] == [[1], [1]], "closing a group and writing a column wake those who wait for it"

    def test_a_waiting_take_sees_the_end(self, transport: Transport) -> None:
        def wait() -> None:
            with pytest.raises(EndOfStream):
                transport.take("actor", timeout=PATIENCE)

        in_threads(wait, transport.finish)

"""What every transport must do. Subclass :class:`TransportContract` and override its fixture ``make_transport``."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from relax_core.api.columns import Column, ColumnSpec, IntArray, Table
from relax_core.api.errors import DeadlineExceeded, EndOfStream, LeaseExpired, TransportError
from relax_core.api.transport import Consumer, Lease, Transport
from relax_core.testing.threads import DEADLINE, in_threads

TOKENS = ColumnSpec("tokens", "int64")
LOGPROBS = ColumnSpec("logprobs", "float32")
REWARD = ColumnSpec("reward", "float64", "row")
SEGMENTS = ColumnSpec("segments", "int64", "row", (2,), ragged=True)
TASK = ColumnSpec("task", "uint8", "group", (), ragged=True)
COLUMNS = (TOKENS, LOGPROBS, REWARD, SEGMENTS, TASK)
REWARDER = Consumer("rewarder", frozenset({"tokens", "task"}), frozenset({"task"}))
ACTOR = Consumer("actor", frozenset({"tokens", "reward", "segments"}), frozenset({"reward"}))

LEASE_SECONDS = 0.05

MakeTransport = Callable[..., Transport]


class Clock:
    """A clock that only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def token_rows(group: int, lengths: Sequence[int]) -> list[Column]:
    """Columns of an append: rows of the given lengths whose tokens tell group and row apart."""
    tokens = [np.arange(length) + 1000 * group + 100 * row for row, length in enumerate(lengths)]
    segments = [[[0, group]]] * len(lengths)
    return [Column.of(TOKENS, tokens), Column.of(SEGMENTS, segments), Column.of(TASK, [[group % 256, 7]])]


def add_group(transport: Transport, group: int, lengths: Sequence[int] = (2, 3), close: bool = True) -> IntArray:
    """Appends one group and closes it."""
    ids = transport.append(group, token_rows(group, lengths), version=group)
    if close:
        transport.close_group(group)
    return ids


def reward(transport: Transport, ids: Any, value: float = 1.0) -> None:
    """Writes the reward of some rows."""
    transport.write(ids, [Column.of(REWARD, [value] * len(ids))])


def taken(lease: Lease | None) -> Lease:
    """The lease, which must be there."""
    assert lease is not None, "a ready group must be handed out at once"
    return lease


def groups_of(lease: Lease) -> list[int]:
    """Ids of the leased groups, in the order of their rows."""
    return list(dict.fromkeys(lease.table.groups.tolist()))


class TransportContract:
    """Rules of :class:`relax_core.api.transport.Transport`.

    ``make_transport(capacity_bytes=0, clock=None)`` builds a transport that is not open yet. A transport whose leases
    cannot be measured by a given clock sets ``supports_clock = False``: tests then wait in real time.
    """

    supports_clock = True

    @pytest.fixture
    def make_transport(self) -> MakeTransport:
        """The factory; override it."""
        raise NotImplementedError("override the fixture make_transport")

    @pytest.fixture
    def clock(self) -> Clock | None:
        """The clock that leases run by, if the transport takes one."""
        return Clock() if self.supports_clock else None

    @pytest.fixture
    def transport(self, make_transport: MakeTransport, clock: Clock | None) -> Transport:
        """An open transport with two consumers."""
        transport = make_transport(clock=clock) if self.supports_clock else make_transport()
        transport.open(COLUMNS, (REWARDER, ACTOR))
        return transport

    @staticmethod
    def expire(clock: Clock | None) -> None:
        """Lets a lease of ``LEASE_SECONDS`` run out."""
        if clock is None:
            time.sleep(LEASE_SECONDS)
        else:
            clock.now += LEASE_SECONDS

    # What comes in comes out.

    def test_rows_come_back_as_they_were_written(self, transport: Transport) -> None:
        first = transport.append(4, token_rows(4, (2, 3)), version=9)
        second = transport.append(4, token_rows(4, (1, 0))[:2], version=10)
        transport.close_group(4)
        lease = taken(transport.take("rewarder"))
        assert lease.table.ids.tolist() == [*first, *second], "ids are those that append returned, in order"
        assert lease.table.groups.tolist() == [4] * 4
        assert set(lease.table.columns) == {"task"}, "the light columns come with the lease, and no others"
        assert [entry.tolist() for entry in _entries(lease.table, "task")] == [[4, 7]] * 4, "one entry per row here"
        table = transport.fetch(lease, ["tokens"])
        assert [len(entry) for entry in _entries(table, "tokens")] == [2, 3, 1, 0]
        assert table["tokens"][1].tolist() == [4100, 4101, 4102]
        assert table["tokens"].spec == TOKENS
        assert table["tokens"].values.dtype == np.int64
        assert table.versions["tokens"].tolist() == [9, 9, 10, 10], "the version given with the entry stays with it"

    def test_fetch_gives_rows_in_the_order_asked(self, transport: Transport) -> None:
        ids = [*add_group(transport, 1), *add_group(transport, 2)]
        lease = taken(transport.take("rewarder", 2, 2))
        table = transport.fetch(lease, ["tokens", "task"], [ids[3], ids[0]])
        assert table.ids.tolist() == [ids[3], ids[0]]
        assert table.groups.tolist() == [2, 1]
        assert [entry[0] for entry in _entries(table, "tokens")] == [2100, 1000]
        assert [entry[0] for entry in _entries(table, "task")] == [2, 1]
        assert len(transport.fetch(lease, ["tokens"], [])) == 0

    def test_fetch_refuses_rows_and_columns_that_are_not_the_leases(self, transport: Transport) -> None:
        ids = add_group(transport, 1)
        add_group(transport, 2)
        lease = taken(transport.take("rewarder"))
        with pytest.raises(TransportError, match="lease"):
            transport.fetch(lease, ["tokens"], [int(ids.max()) + 10**7])
        for name in ("reward", "rewrad"):
            with pytest.raises(TransportError, match=name):
                transport.fetch(lease, [name])

    def test_writes_may_come_in_parts_and_any_order(self, transport: Transport) -> None:
        ids = [*add_group(transport, 1), *add_group(transport, 2)]
        transport.write([ids[2], ids[0]], [Column.of(REWARD, [3.0, 1.0])], version=5)
        assert transport.take("actor", 1, 2) is None, "a group lacks a column while one of its rows does"
        transport.write([ids[3], ids[1]], [Column.of(REWARD, [4.0, 2.0])], version=6)
        lease = taken(transport.take("actor", 2, 2))
        assert lease.table["reward"].values.tolist() == [1.0, 2.0, 3.0, 4.0]
        assert lease.table.versions["reward"].tolist() == [5, 6, 5, 6]

    def test_neither_side_can_change_what_the_other_sees(self, transport: Transport) -> None:
        columns = token_rows(1, (2,))
        transport.append(1, columns)
        columns[0].values[:] = 0
        transport.close_group(1)
        lease = taken(transport.take("rewarder"))
        transport.fetch(lease, ["tokens"])["tokens"].values[:] = 0
        assert transport.fetch(lease, ["tokens"])["tokens"].values.tolist() == [1000, 1001]

    # Nothing wrong comes in.

    @pytest.mark.parametrize(
        "column",
        [
            Column.of(ColumnSpec("strange", "int64"), [[1], [2, 3]]),
            Column.of(ColumnSpec("tokens", "int32"), [[1], [2, 3]]),
            Column(TOKENS, np.array([1, 2, 3], np.int32), np.array([0, 1, 3])),
            Column(TOKENS, np.array([[1], [2], [3]]), np.array([0, 1, 3])),
            Column(TOKENS, np.array([1, 2, 3]), np.array([0, 1, 2])),
            Column(TOKENS, np.array([1, 2, 3]), np.array([0, 4, 3])),
            Column(TOKENS, np.array([1, 2])),
            Column(REWARD, np.array([1.0, 2.0]), np.array([0, 1, 2])),
            Column(REWARD, np.array([[1.0], [2.0]])),
            Column.of(REWARD, [1.0]),
        ],
    )
    def test_a_column_of_the_wrong_type_or_length_is_refused(self, transport: Transport, column: Column) -> None:
        ids = transport.append(1, [Column.of(SEGMENTS, [[[0, 1]], [[0, 1]]])])
        with pytest.raises(TransportError, match=column.spec.name):
            transport.write(ids, [column])
        transport.write(ids, [Column.of(TOKENS, [[1], [2, 3]]), Column.of(REWARD, [1.0, 2.0])])

    def test_per_token_columns_of_a_row_have_one_length(self, transport: Transport) -> None:
        with pytest.raises(TransportError, match="logprobs"):
            transport.append(1, [Column.of(TOKENS, [[1, 2]]), Column.of(LOGPROBS, [[0.0]])])
        ids = transport.append(1, [Column.of(SEGMENTS, [[[0, 0]], [[0, 0]]])])
        transport.write(ids[:1], [Column.of(LOGPROBS, [[0.0, 0.0]])])
        with pytest.raises(TransportError, match="2 tokens, not 3"):
            transport.write(ids[:1], [Column.of(TOKENS, [[1, 2, 3]])])
        transport.write(ids, [Column.of(TOKENS, [[1, 2], [1, 2, 3]])])

    def test_each_cell_is_written_once(self, transport: Transport) -> None:
        ids = add_group(transport, 1)
        reward(transport, ids[:1])
        for columns in ([Column.of(TOKENS, [[1, 2], [1, 2, 3]])], [Column.of(REWARD, [2.0, 2.0])]):
            with pytest.raises(TransportError, match="already"):
                transport.write(ids, columns)
        add_group(transport, 2, close=False)
        with pytest.raises(TransportError, match="task"):
            transport.append(2, token_rows(2, (1,)))
        with pytest.raises(TransportError, match="twice"):
            transport.write(ids[1:], [Column.of(REWARD, [2.0]), Column.of(REWARD, [2.0])])
        with pytest.raises(TransportError, match="twice"):
            transport.write([ids[1], ids[1]], [Column.of(REWARD, [2.0, 2.0])])
        reward(transport, ids[1:], 2.0)
        assert taken(transport.take("actor")).table["reward"].values.tolist() == [1.0, 2.0]

    def test_a_refused_write_changes_nothing(self, transport: Transport) -> None:
        first, second = add_group(transport, 1), add_group(transport, 2)
        reward(transport, second[1:])
        before = transport.depth()
        for ids in ([*first, *second], [*first, int(first[-1]) + 1], [*first, int(second[-1]) + 10**9]):
            with pytest.raises(TransportError):
                transport.write(ids, [Column.of(REWARD, [5.0] * len(ids))])
            assert transport.depth() == before, "a write is all or nothing"
        reward(transport, first, 1.0)
        assert taken(transport.take("actor")).table["reward"].values.tolist() == [1.0, 1.0]

    def test_a_refused_append_changes_nothing(self, transport: Transport) -> None:
        before = transport.depth()
        for columns in ([], [Column.of(TASK, [[1]])], [*token_rows(1, (2,)), Column.of(REWARD, [1.0, 2.0])]):
            with pytest.raises(TransportError):
                transport.append(1, columns)
        assert transport.depth() == before

    def test_open_refuses_contradictions(self, make_transport: MakeTransport, transport: Transport) -> None:
        with pytest.raises(TransportError, match="open"):
            transport.open(COLUMNS, ())
        for columns, consumers in (
            ((TOKENS, TOKENS), ()),
            ((TOKENS,), (Consumer("a", frozenset({"token"})),)),
            ((TOKENS,), (Consumer("a", frozenset({"tokens"})), Consumer("a", frozenset()))),
            ((TOKENS, REWARD), (Consumer("a", frozenset({"tokens"}), frozenset({"reward"})),)),
        ):
            with pytest.raises(TransportError):
                make_transport().open(columns, consumers)
        with pytest.raises(TransportError, match="nobody"):
            transport.take("nobody")

    # Groups.

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

    # Leases.

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
        assert groups_of(taken(transport.take("rewarder", timeout=DEADLINE))) == [1]

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

    # Dropping.

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

    # Nothing yet is not the end.

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
            lambda: groups_of(taken(transport.take("rewarder", timeout=DEADLINE))),
            lambda: groups_of(taken(transport.take("actor", timeout=DEADLINE))),
        ]
        outcomes = in_threads(*waiting, lambda: reward(transport, add_group(transport, 1)))
        assert outcomes[:2] == [[1], [1]], "closing a group and writing a column wake those who wait for it"

    def test_a_waiting_take_sees_the_end(self, transport: Transport) -> None:
        def wait() -> None:
            with pytest.raises(EndOfStream):
                transport.take("actor", timeout=DEADLINE)

        in_threads(wait, transport.finish)

    # Room.

    def test_a_full_transport_makes_append_wait(self, make_transport: MakeTransport) -> None:
        size = self._bytes_of_a_group(make_transport)
        transport = make_transport(capacity_bytes=2 * size)
        transport.open(COLUMNS, (REWARDER,))
        add_group(transport, 0)
        add_group(transport, 1)
        with pytest.raises(DeadlineExceeded, match="group 2"):
            add_group(transport, 2)
        assert transport.depth()["groups"] == 2, "an append that found no room leaves nothing behind"
        in_threads(
            lambda: transport.append(2, token_rows(2, (2, 3)), timeout=DEADLINE),
            lambda: transport.ack(taken(transport.take("rewarder"))),
        )
        assert transport.depth()["rows"] == 4

    def test_drop_and_released_blobs_make_room(self, make_transport: MakeTransport) -> None:
        size = self._bytes_of_a_group(make_transport)
        transport = make_transport(capacity_bytes=2 * size)
        transport.open(COLUMNS, (REWARDER,))
        key = transport.put_blob(bytes(size + 1))
        with pytest.raises(DeadlineExceeded):
            add_group(transport, 0)
        transport.release_blob(key)
        add_group(transport, 0)
        add_group(transport, 1)
        transport.drop([0])
        add_group(transport, 2)

    def test_a_group_that_can_never_fit_is_refused_at_once(self, make_transport: MakeTransport) -> None:
        transport = make_transport(capacity_bytes=self._bytes_of_a_group(make_transport))
        transport.open(COLUMNS, (REWARDER,))
        add_group(transport, 0, close=False)
        with pytest.raises(TransportError, match="capacity"):
            transport.append(0, token_rows(0, (1,))[:2], timeout=DEADLINE)

    @staticmethod
    def _bytes_of_a_group(make_transport: MakeTransport) -> int:
        transport = make_transport()
        transport.open(COLUMNS, (REWARDER,))
        add_group(transport, 0)
        return transport.depth()["bytes"]

    def test_bytes_return_to_zero(self, transport: Transport) -> None:
        ids = add_group(transport, 1)
        before = transport.depth()["bytes"]
        reward(transport, ids)
        assert transport.depth()["bytes"] >= before + 16, "written columns count too"
        add_group(transport, 2)
        transport.drop([2])
        for name in ("rewarder", "actor"):
            transport.ack(taken(transport.take(name)))
        assert transport.depth() == {"groups": 0, "rows": 0, "bytes": 0, "ready/rewarder": 0, "ready/actor": 0}

    def test_depth_counts_ready_groups(self, transport: Transport) -> None:
        add_group(transport, 1)
        reward(transport, add_group(transport, 2))
        depth = transport.depth()
        assert (depth["groups"], depth["rows"], depth["ready/rewarder"], depth["ready/actor"]) == (2, 4, 2, 1)

    # Blobs.

    def test_equal_blobs_are_counted_once(self, transport: Transport) -> None:
        key = transport.put_blob(b"picture")
        assert transport.put_blob(b"picture") == key
        assert transport.depth()["bytes"] == len(b"picture")
        transport.release_blob(key)
        assert transport.get_blob(key) == b"picture", "one reference is left"
        transport.release_blob(key)
        assert transport.depth()["bytes"] == 0
        for use in (transport.get_blob, transport.release_blob):
            with pytest.raises(TransportError, match=key):
                use(key)

    # Snapshots.

    def test_a_snapshot_holds_everything_but_leases(self, make_transport: MakeTransport, transport: Transport) -> None:
        ids = {group: add_group(transport, group) for group in range(4)}
        open_ids = add_group(transport, 4, close=False)
        reward(transport, [*ids[0], *ids[1], ids[2][1]], 2.5)
        transport.ack(taken(transport.take("rewarder")))
        taken(transport.take("rewarder"))
        transport.drop([3])
        key = transport.put_blob(b"sound")
        snapshot = transport.snapshot()
        _assert_plain(snapshot, "snapshot")
        reward(transport, ids[2][:1])
        copy = make_transport()
        copy.open(COLUMNS, (REWARDER, ACTOR))
        copy.restore(snapshot)
        self._check_copy(copy, ids, open_ids)
        assert copy.get_blob(key) == b"sound"
        copy.release_blob(key)
        assert copy.depth()["bytes"] == 0

    @staticmethod
    def _check_copy(copy: Transport, ids: dict[int, IntArray], open_ids: IntArray) -> None:
        with pytest.raises(TransportError, match="already"):
            reward(copy, ids[2][1:])
        reward(copy, [*ids[2][:1], *ids[3]], 3.5)
        copy.append(4, token_rows(4, (4,))[:2])
        copy.close_group(4)
        copy.finish()
        rewarder = taken(copy.take("rewarder", 9, 9))
        assert groups_of(rewarder) == [1, 2, 4], "what was acknowledged stays so; what was leased is free again"
        assert copy.fetch(rewarder, ["tokens"]).versions["tokens"].tolist() == [1, 1, 2, 2, 4, 4, -1]
        actor = taken(copy.take("actor", 1, 9))
        assert actor.table["reward"].values.tolist() == [2.5, 2.5, 2.5, 2.5, 3.5, 2.5]
        assert [len(entry) for entry in _entries(copy.fetch(actor, ["segments"]), "segments")] == [1] * 6
        copy.ack(rewarder)
        copy.ack(actor)
        with pytest.raises(TransportError, match="3"):
            copy.append(3, token_rows(3, (1,)))
        with pytest.raises(EndOfStream):
            copy.take("rewarder")
        assert copy.take("actor") is None
        copy.drop([4])
        reward(copy, open_ids)

    def test_a_snapshot_of_other_declarations_is_refused(
        self, make_transport: MakeTransport, transport: Transport
    ) -> None:
        for columns, consumers in ((COLUMNS[:4], (ACTOR,)), (COLUMNS, (ACTOR,))):
            other = make_transport()
            other.open(columns, consumers)
            with pytest.raises(TransportError, match="snapshot"):
                other.restore(transport.snapshot())

    def test_restore_replaces_what_was_held(self, transport: Transport, clock: Clock | None) -> None:
        empty = transport.snapshot()
        add_group(transport, 1)
        lease = taken(transport.take("rewarder"))
        transport.put_blob(b"x")
        transport.restore(empty)
        assert set(transport.depth().values()) == {0}
        with pytest.raises(LeaseExpired):
            transport.ack(lease)
        add_group(transport, 1)
        assert groups_of(taken(transport.take("rewarder"))) == [1], "after a restore the id is new again"

    # Threads.

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
                    table.ids, [Column.of(REWARD, [float(entry.sum()) for entry in _entries(table, "tokens")])]
                )
                transport.ack(lease)
                mine.extend(groups_of(lease))

        def train(mine: list[int]) -> None:
            for lease in _leases(transport, "actor"):
                table = transport.fetch(lease, ["tokens", "reward"])
                sums = [float(entry.sum()) for entry in _entries(table, "tokens")]
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


def _entries(table: Table, name: str) -> list[Any]:
    return [table[name][row] for row in range(len(table))]


def _leases(transport: Transport, consumer: str) -> Iterator[Lease]:
    """Leases until the end of the stream, each wait with a deadline."""
    while True:
        try:
            yield taken(transport.take(consumer, 1, 3, timeout=DEADLINE))
        except EndOfStream:
            return


def _assert_plain(value: Any, where: str) -> None:
    """Only what JSON and plain arrays can hold."""
    if isinstance(value, dict):
        for key, entry in value.items():
            assert isinstance(key, str), f"{where}: the key {key!r} is not a string"
            _assert_plain(entry, f"{where}.{key}")
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            _assert_plain(entry, f"{where}[{number}]")
    elif isinstance(value, np.ndarray):
        assert not value.dtype.hasobject, f"{where} holds Python objects"
    else:
        assert value is None or isinstance(value, (bool, int, float, str)), f"{where} is a {type(value).__name__}"

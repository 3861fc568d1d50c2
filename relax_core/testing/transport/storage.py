"""Rules of room, blobs and snapshots."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from relax_core.api.columns import Column, IntArray
from relax_core.api.errors import DeadlineExceeded, EndOfStream, LeaseExpired, TransportError
from relax_core.api.transport import Transport
from relax_core.testing.threads import DEADLINE, in_threads
from relax_core.testing.transport.fixtures import (
    ACTOR,
    COLUMNS,
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
    token_rows,
)


class StorageRules(TransportFixtures):
    """What is held is counted, bounded, and can be stored."""

    def test_a_full_transport_makes_append_wait(self, make_transport: MakeTransport) -> None:
        size = self._bytes_of_a_group(make_transport)
        transport = make_transport(capacity_bytes=2 * size)
        transport.open(COLUMNS, (REWARDER,))
        add_group(transport, 0)
        add_group(transport, 1)
        with pytest.raises(DeadlineExceeded, match="group 2"):
            add_group(transport, 2)
        assert transport.depth()["groups"] == 2, "an append that found no room leaves nothing behind"
        _append_while(transport, 2, lambda: transport.ack(taken(transport.take("rewarder"))))
        assert transport.depth()["rows"] == 4

    def test_drop_makes_room(self, make_transport: MakeTransport) -> None:
        transport = make_transport(capacity_bytes=2 * self._bytes_of_a_group(make_transport))
        transport.open(COLUMNS, (REWARDER,))
        add_group(transport, 0)
        add_group(transport, 1)
        _append_while(transport, 2, lambda: transport.drop([0]))
        assert transport.depth()["groups"] == 2

    def test_blobs_take_room_while_their_group_is_there(self, make_transport: MakeTransport) -> None:
        size = self._bytes_of_a_group(make_transport)
        transport = make_transport(capacity_bytes=3 * size)
        transport.open(COLUMNS, (REWARDER,))
        for group in range(3):  # together more than there is room for, and no group is there
            transport.put_blob(bytes([group]) * (size + 1), group)
        add_group(transport, 0)
        with pytest.raises(DeadlineExceeded):
            add_group(transport, 1)
        _append_while(transport, 1, lambda: transport.ack(taken(transport.take("rewarder"))))
        _append_while(transport, 2, lambda: transport.drop([1]))
        assert transport.depth()["bytes"] == 2 * size + 1

    def test_a_group_that_can_never_fit_is_refused_at_once(self, make_transport: MakeTransport) -> None:
        transport = make_transport(capacity_bytes=self._bytes_of_a_group(make_transport))
        transport.open(COLUMNS, (REWARDER,))
        add_group(transport, 0, close=False)
        with pytest.raises(TransportError, match="capacity"):
            transport.append(0, token_rows(0, (1,))[:2], timeout=DEADLINE)
        transport.drop([0])
        transport.put_blob(b"x", 1)
        with pytest.raises(TransportError, match="capacity"):
            transport.append(1, token_rows(1, (2, 3)), timeout=DEADLINE)

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

    def test_equal_blobs_are_counted_once(self, transport: Transport) -> None:
        key = transport.put_blob(b"picture", 1)
        assert transport.put_blob(b"picture", 2) == transport.put_blob(b"picture", 1) == key
        assert transport.depth()["bytes"] == len(b"picture")
        assert transport.get_blob(key) == b"picture"

    def test_a_blob_is_there_as_long_as_a_group_that_holds_it(self, transport: Transport) -> None:
        keys = [transport.put_blob(b"picture", 1), transport.put_blob(b"picture", 1), transport.put_blob(b"sound", 2)]
        assert transport.put_blob(b"picture", 2) == keys[0]
        for group in (1, 2):
            reward(transport, add_group(transport, group))
        transport.drop([1])
        assert transport.get_blob(keys[0]) == b"picture", "the other group holds it"
        for name in ("rewarder", "actor"):
            assert transport.get_blob(keys[2]) == b"sound", "one consumer has not acknowledged its group yet"
            transport.ack(taken(transport.take(name)))
        assert transport.depth()["bytes"] == 0
        for key in keys:
            with pytest.raises(TransportError, match=key):
                transport.get_blob(key)

    def test_a_group_that_is_gone_holds_no_blob(self, transport: Transport) -> None:
        add_group(transport, 1)
        transport.drop([1])
        key = transport.put_blob(b"picture", 1)
        assert transport.depth()["bytes"] == 0
        with pytest.raises(TransportError, match=key):
            transport.get_blob(key)
        assert transport.put_blob(b"picture", 2) == key
        assert transport.get_blob(key) == b"picture"

    def test_a_snapshot_holds_everything_but_leases(self, make_transport: MakeTransport, transport: Transport) -> None:
        ids = {group: add_group(transport, group) for group in range(4)}
        open_ids = add_group(transport, 4, close=False)
        reward(transport, [*ids[0], *ids[1], ids[2][1]], 2.5)
        transport.ack(taken(transport.take("rewarder")))
        taken(transport.take("rewarder"))
        transport.drop([3])
        keys = [transport.put_blob(data, group) for data, group in ((b"sound", 1), (b"sound", 4), (b"picture", 2))]
        snapshot = transport.snapshot()
        _assert_plain(snapshot, "snapshot")
        reward(transport, ids[2][:1])
        copy = make_transport()
        copy.open(COLUMNS, (REWARDER, ACTOR))
        copy.restore(snapshot)
        assert copy.depth()["rows"] == 8
        assert copy.depth()["bytes"] > 8 * 2 * 10, "restored rows are counted in bytes"
        assert copy.get_blob(keys[2]) == b"picture"
        self._check_copy(copy, ids, open_ids, keys[0])
        assert copy.depth()["bytes"] == 0, "blobs go with the groups that hold them"

    @staticmethod
    def _check_copy(copy: Transport, ids: dict[int, IntArray], open_ids: IntArray, blob: str) -> None:
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
        assert [len(entry) for entry in entries_of(copy.fetch(actor, ["segments"]), "segments")] == [1] * 6
        copy.ack(rewarder)
        copy.ack(actor)
        with pytest.raises(TransportError, match="3"):
            copy.append(3, token_rows(3, (1,)))
        with pytest.raises(EndOfStream):
            copy.take("rewarder")
        assert copy.take("actor") is None
        assert copy.get_blob(blob) == b"sound"
        copy.drop([4])
        reward(copy, open_ids)

    def test_a_snapshot_of_an_open_group_knows_which_rows_lack_a_column(
        self, make_transport: MakeTransport, transport: Transport
    ) -> None:
        """The first of three rows have a column that the last one gets after the restore."""
        ids = [*transport.append(1, [*token_rows(1, (2, 3)), Column.of(REWARD, [0.5, 1.5])], version=3)]
        ids += [*transport.append(1, token_rows(1, (1,))[:2], version=4)]
        copy = make_transport()
        copy.open(COLUMNS, (REWARDER, ACTOR))
        copy.restore(transport.snapshot())
        copy.close_group(1)
        assert copy.take("actor") is None, "a row lacks its reward"
        reward(copy, ids[2:], 2.5)
        table = taken(copy.take("actor")).table
        assert table["reward"].values.tolist() == [0.5, 1.5, 2.5]
        assert table.versions["reward"].tolist() == [3, 3, -1]

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
        transport.put_blob(b"x", 1)
        transport.restore(empty)
        assert set(transport.depth().values()) == {0}
        with pytest.raises(LeaseExpired):
            transport.ack(lease)
        add_group(transport, 1)
        assert groups_of(taken(transport.take("rewarder"))) == [1], "after a restore the id is new again"


def _append_while(transport: Transport, group: int, make_room: Callable[[], None]) -> None:
    """Adds a group that may have to wait for room until another thread makes it."""
    in_threads(lambda: transport.append(group, token_rows(group, (2, 3)), timeout=PATIENCE), make_room)
    transport.close_group(group)


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

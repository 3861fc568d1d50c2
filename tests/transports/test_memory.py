"""The in-process transport against the contract of all transports, and its own settings."""

from collections.abc import Callable

import numpy as np
import pytest
from pydantic import ValidationError

from relax_core.api.columns import Column, ColumnSpec
from relax_core.api.errors import TransportError
from relax_core.api.transport import Consumer, Transport
from relax_core.testing.transport import TransportContract
from relax_core.testing.transport.fixtures import ACTOR, COLUMNS, REWARDER, Clock, MakeTransport, add_group, token_rows
from relax_core.transports.memory.config import MemoryTransportConfig
from relax_core.transports.memory.transport import MemoryTransport

NOTE = ColumnSpec("note", "float32", "group")


def make(capacity_bytes: int = 0, clock: Callable[[], float] | None = None) -> Transport:
    config = MemoryTransportConfig(capacity_bytes=capacity_bytes)
    return MemoryTransport(config) if clock is None else MemoryTransport(config, clock=clock)


class TestMemoryTransport(TransportContract):
    @pytest.fixture
    def make_transport(self) -> MakeTransport:
        return make


class TestMemoryTransportInRealTime(TransportContract):
    supports_clock = False

    @pytest.fixture
    def make_transport(self) -> MakeTransport:
        return make


def test_capacity_is_not_negative() -> None:
    with pytest.raises(ValidationError):
        MemoryTransportConfig(capacity_bytes=-1)


def test_group_ids_and_rows_have_a_range() -> None:
    transport = make()
    transport.open(COLUMNS, (REWARDER, ACTOR))
    for group in (-1, 1 << 43):
        with pytest.raises(TransportError, match="out of range"):
            add_group(transport, group)
    assert len(set(add_group(transport, (1 << 43) - 1)) & set(add_group(transport, 0))) == 0
    with pytest.raises(TransportError, match="more than 1048576 rows"):
        transport.append(5, [Column(COLUMNS[2], np.zeros((1 << 20) + 1))])


def test_a_stale_lease_is_seen_without_a_take() -> None:
    clock = Clock()
    transport = make(clock=clock)
    transport.open(COLUMNS, (REWARDER,))
    transport.append(0, token_rows(0, (1,)))
    transport.close_group(0)
    transport.take("rewarder", seconds=5.0)
    assert transport.depth()["ready/rewarder"] == 0
    clock.now += 5.0
    assert transport.depth()["ready/rewarder"] == 1


def test_a_written_group_column_has_one_entry_per_group() -> None:
    transport = make()
    transport.open((*COLUMNS, NOTE), (Consumer("reader", frozenset({"note"}), frozenset({"note"})),))
    ids = [*add_group(transport, 2), *add_group(transport, 1)]
    with pytest.raises(TransportError, match="note"):
        transport.write(ids, [Column.of(NOTE, [20.0, 20.0, 10.0, 10.0])])
    transport.write([ids[0], ids[2]], [Column.of(NOTE, [10.0, 20.0])], version=3)
    with pytest.raises(TransportError, match="already"):
        transport.write([ids[1]], [Column.of(NOTE, [20.0])])
    lease = transport.take("reader", 2, 2)
    assert lease is not None
    assert lease.table["note"].values.tolist() == [10.0, 10.0, 20.0, 20.0]
    assert lease.table.versions["note"].tolist() == [3, 3, 3, 3]

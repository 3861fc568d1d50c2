"""What the tests of a transport share: a small schema, two consumers, a clock."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from relax_core.api.columns import Column, ColumnSpec, IntArray, Table
from relax_core.api.transport import Consumer, Lease, Transport

TOKENS = ColumnSpec("tokens", "int64")
LOGPROBS = ColumnSpec("logprobs", "float32")
REWARD = ColumnSpec("reward", "float64", "row")
SEGMENTS = ColumnSpec("segments", "int64", "row", (2,), ragged=True)
TASK = ColumnSpec("task", "uint8", "group", (), ragged=True)
COLUMNS = (TOKENS, LOGPROBS, REWARD, SEGMENTS, TASK)
REWARDER = Consumer("rewarder", frozenset({"tokens", "task"}), frozenset({"task"}))
ACTOR = Consumer("actor", frozenset({"tokens", "reward", "segments"}), frozenset({"reward"}))

LEASE_SECONDS = 2.0
"""Longer than a busy machine needs between two calls, where no clock can be moved."""
PATIENCE = 600.0
"""Longer than :func:`in_threads` lets a thread run: such a wait passes its test only if it is woken."""

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


def entries_of(table: Table, name: str) -> list[Any]:
    """One column, entry by entry."""
    return [table[name][row] for row in range(len(table))]


class TransportFixtures:
    """The fixtures of :class:`TransportContract`."""

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

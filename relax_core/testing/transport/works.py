"""What other processes do in the tests of a transport. Functions of a module, so that they can be pickled."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relax_core.api.columns import Column, Table
from relax_core.api.errors import EndOfStream
from relax_core.api.transport import Lease, Transport
from relax_core.testing.threads import DEADLINE
from relax_core.testing.transport.fixtures import REWARD, TOKENS, entries_of, groups_of, taken, token_rows


def call(transport: Transport, method: str, *arguments: Any) -> Any:
    """``transport.method(*arguments)``."""
    return getattr(transport, method)(*arguments)


def hold(transport: Transport, seconds: float) -> list[int]:
    """Takes what is ready for the rewarder, and keeps it."""
    return groups_of(taken(transport.take("rewarder", 1, 9, timeout=DEADLINE, seconds=seconds)))


def produce(transport: Transport, groups: Sequence[int], seed: int) -> None:
    """Appends groups of random size, in one to three parts each, several open at a time."""
    draw = random.Random(seed)
    parts = [(group, part) for group in groups for part in range(1 + group % 3)]
    parts.sort(key=lambda part: (part[0] // 4, draw.random()))
    left = {group: 1 + group % 3 for group in groups}
    for group, _ in parts:
        first = left[group] == 1 + group % 3
        left[group] -= 1
        lengths = [draw.randrange(5) for _ in range(draw.randrange(1, 5))]
        rows = token_rows(group, lengths) if first else token_rows(group, lengths)[:2]
        transport.append(group, rows, version=group, timeout=DEADLINE, close=left[group] == 0)


def produce_wide(transport: Transport, rows: int, length: int) -> None:
    """Appends groups of the same size for ever, each in one step."""
    group = 0
    while True:
        add_wide(transport, group, rows, length)
        group += 1


def add_wide(transport: Transport, group: int, rows: int, length: int, repeat: bool = False) -> None:
    """One group of ``rows`` rows of ``length`` tokens, each token the group's id."""
    values = np.full(rows * length, group)
    tokens = Column(TOKENS, values, np.arange(0, rows * length + 1, length))
    columns = [tokens, *token_rows(group, [0] * rows)[1:]]
    transport.append(group, columns, version=group, timeout=DEADLINE, close=True, repeat=repeat)


def give_rewards(transport: Transport, seed: int) -> list[int]:
    """The rewarder until the end of the stream: each reward is the sum of the row's tokens; every third lease is given
    back untouched."""
    draw, done = random.Random(seed), []
    for lease in leases(transport, "rewarder", draw):
        if draw.randrange(3) == 0:
            transport.nack(lease)
            continue
        table = transport.fetch(lease, ["tokens"])
        transport.write(table.ids, [rewards_of(table)])
        transport.ack(lease)
        done += groups_of(lease)
    return done


def rewards_of(table: Table) -> Column:
    """The rewards that :func:`check_rows` wants to see."""
    return Column.of(REWARD, [float(entry.sum()) for entry in entries_of(table, "tokens")])


def train(transport: Transport, seed: int) -> list[int]:
    """The actor until the end of the stream; refuses rows that are not what was written."""
    draw, done = random.Random(seed), []
    for lease in leases(transport, "actor", draw):
        assert groups_of(lease) == sorted(groups_of(lease)), "the oldest group comes first"
        check_rows(transport, lease)
        transport.ack(lease)
        done += groups_of(lease)
    return done


def check_rows(transport: Transport, lease: Lease) -> None:
    """Whether a lease of the actor has whole groups of :func:`produce`, each with its own rows and rewards."""
    table = transport.fetch(lease, ["tokens", "reward", "segments"])
    assert table.ids.tolist() == lease.table.ids.tolist() == sorted(set(table.ids.tolist()))
    for row, group in enumerate(table.groups.tolist()):
        tokens = table["tokens"][row]
        assert (tokens // 1000 == group).all() and table["segments"][row].tolist() == [[0, group]], "a row is one row"
        assert table["reward"][row] == tokens.sum(), "columns of one row stay together"
        assert table.versions["tokens"][row] == group


def leases(transport: Transport, consumer: str, draw: random.Random) -> Iterator[Lease]:
    """Leases of one to three groups until the end of the stream, each wait with a deadline."""
    while True:
        try:
            yield taken(transport.take(consumer, 1, draw.randrange(1, 4), timeout=DEADLINE))
        except EndOfStream:
            return

"""Rules of rows and columns."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from relax_core.api.columns import Column, ColumnSpec
from relax_core.api.errors import TransportError
from relax_core.api.transport import Consumer, Transport
from relax_core.testing.transport import works
from relax_core.testing.transport.fixtures import (
    COLUMNS,
    LOGPROBS,
    REWARD,
    SEGMENTS,
    TASK,
    TOKENS,
    MakeTransport,
    TransportFixtures,
    add_group,
    entries_of,
    reward,
    taken,
    token_rows,
)


class RowRules(TransportFixtures):
    """What comes in is checked, and comes out as it was."""

    def test_rows_come_back_as_they_were_written(self, transport: Transport) -> None:
        first = transport.append(4, token_rows(4, (2, 3)), version=9)
        second = transport.append(4, token_rows(4, (1, 0))[:2], version=10)
        transport.close_group(4)
        lease = taken(transport.take("rewarder"))
        assert lease.table.ids.tolist() == [*first, *second], "ids are those that append returned, in order"
        assert lease.table.groups.tolist() == [4] * 4
        assert set(lease.table.columns) == {"task"}, "the light columns come with the lease, and no others"
        assert [entry.tolist() for entry in entries_of(lease.table, "task")] == [[4, 7]] * 4, "one entry per row here"
        table = transport.fetch(lease, ["tokens"])
        assert [len(entry) for entry in entries_of(table, "tokens")] == [2, 3, 1, 0]
        assert table["tokens"][1].tolist() == [4100, 4101, 4102]
        assert table["tokens"].spec == TOKENS
        assert table["tokens"].values.dtype == np.int64
        assert table.versions["tokens"].tolist() == [9, 9, 10, 10], "the version given with the entry stays with it"

    def test_a_table_stays_as_it_is_while_it_is_used(self, transport: Transport) -> None:
        works.add_wide(transport, 0, 4, 2048)
        lease = taken(transport.take("rewarder"))
        tokens, tasks = transport.fetch(lease, ["tokens"])["tokens"], lease.table
        transport.ack(lease)
        transport.drop([0])
        for group in range(1, 5):
            works.add_wide(transport, group, 4, 2048)
            transport.ack(taken(transport.take("rewarder")))
            transport.drop([group])
        assert (tokens.values == 0).all() and (tokens.lengths == 2048).all()
        assert [entry.tolist() for entry in entries_of(tasks, "task")] == [[0, 7]] * 4

    def test_integers_may_be_those_of_numpy(self, transport: Transport) -> None:
        numbers: Any = np.arange(1, 3)
        one, two = numbers
        for group in (one, two):
            transport.append(group, token_rows(1, (2,)), version=group)
            transport.close_group(group)
        lease = taken(transport.take("rewarder", two, two))
        assert transport.fetch(lease, ["tokens"]).versions["tokens"].tolist() == [1, 2]

    def test_fetch_gives_rows_in_the_order_asked(self, transport: Transport) -> None:
        ids = [*add_group(transport, 1), *add_group(transport, 2)]
        lease = taken(transport.take("rewarder", 2, 2))
        table = transport.fetch(lease, ["tokens", "task"], [ids[3], ids[0]])
        assert table.ids.tolist() == [ids[3], ids[0]]
        assert table.groups.tolist() == [2, 1]
        assert [entry[0] for entry in entries_of(table, "tokens")] == [2100, 1000]
        assert [entry[0] for entry in entries_of(table, "task")] == [2, 1]
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
        with suppress(ValueError):  # what is handed out may be read-only
            transport.fetch(lease, ["tokens"])["tokens"].values[:] = 0
        assert transport.fetch(lease, ["tokens"])["tokens"].values.tolist() == [1000, 1001]

    @pytest.mark.parametrize("groups", [1, 2])
    def test_columns_that_came_together_do_not_change_each_other(
        self, make_transport: MakeTransport, groups: int
    ) -> None:
        transport, names = make_transport(), frozenset({"tokens", "logprobs"})
        transport.open((TOKENS, LOGPROBS), (Consumer("reader", names, names),))
        for group in range(groups):
            columns = [Column.of(TOKENS, [[1, 2], [3]]), Column.of(LOGPROBS, [[0.0, 0.5], [0.25]])]
            transport.append(group, columns, version=7, close=True)
        table = taken(transport.take("reader", groups, groups)).table
        changed = table["tokens"].offsets
        assert changed is not None
        for array in (changed, table["tokens"].values, table.versions["tokens"]):
            with suppress(ValueError):  # what is handed out may be read-only
                array[:] = 0
        assert table["logprobs"].lengths.tolist() == [2, 1] * groups
        assert table["logprobs"].values.tolist() == [0.0, 0.5, 0.25] * groups
        assert table.versions["logprobs"].tolist() == [7, 7] * groups

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

    def test_a_repeated_write_may_have_other_lengths_where_it_adds_nothing(self, make_transport: MakeTransport) -> None:
        transport, names = make_transport(), frozenset({"reward", "logprobs"})
        transport.open((REWARD, LOGPROBS), (Consumer("reader", names, names),))
        ids = transport.append(1, [Column.of(REWARD, [0.0, 1.0])], close=True)
        transport.write(ids[:1], [Column.of(LOGPROBS, [[0.25, 0.5]])])
        transport.write(ids, [Column.of(LOGPROBS, [[1.0, 2.0, 3.0], [4.0]])], repeat=True)
        transport.write(ids, [Column.of(LOGPROBS, [[1.0], [2.0, 3.0]])], repeat=True)
        table = taken(transport.take("reader")).table
        assert [entry.tolist() for entry in entries_of(table, "logprobs")] == [[0.25, 0.5], [4.0]]

    def test_a_repeated_write_keeps_what_is_there(self, transport: Transport) -> None:
        ids = [*add_group(transport, 1), *add_group(transport, 2)]
        reward(transport, ids[:3], 1.0)
        transport.write(ids, [Column.of(REWARD, [2.0] * 4)], repeat=True)
        assert taken(transport.take("actor", 2, 2)).table["reward"].values.tolist() == [1.0, 1.0, 1.0, 2.0]
        before = transport.depth()
        transport.write(ids, [Column.of(REWARD, [3.0] * 4)], repeat=True)
        assert transport.depth() == before
        with pytest.raises(TransportError, match="tokens"):
            transport.write(ids[:1], [Column.of(LOGPROBS, [[0.0]])], repeat=True)

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

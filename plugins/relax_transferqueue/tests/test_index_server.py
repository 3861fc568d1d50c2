"""What the index hands out does not change while it is on its way to whoever asked."""

import pickle
from typing import Any

import numpy as np
import pytest
from relax_transferqueue.index_server import IndexServer
from relax_transferqueue.stored import Stored

from relax_core.api.columns import Column, ColumnSpec
from relax_core.testing.transport.fixtures import ACTOR, COLUMNS, REWARDER, token_rows
from relax_core.transports.memory.declarations import Declarations
from relax_core.transports.memory.schema import Columns, Writing


@pytest.fixture
def server() -> IndexServer:
    """With one closed group of two rows."""
    server = IndexServer(Declarations(COLUMNS, (REWARDER, ACTOR)).state(), 0)
    columns = token_rows(1, (2, 3))
    server.append(1, 2, Stored.of(Columns.of(columns, columns[0].lengths), "first"), 5, 0.0, True, False)
    server.put_blob("key", "blob", 4, 1)
    return server


def taken(server: IndexServer) -> Any:
    return server.take("rewarder", 1, 1, 0.0, 600.0)


def leased(server: IndexServer) -> Any:
    return server.leased(taken(server).key, None)


def kept(server: IndexServer) -> Any:
    return server.keep(60.0)


@pytest.mark.parametrize("ask", [taken, leased, kept])
def test_an_answer_stays_as_it_is(server: IndexServer, ask: Any) -> None:
    answer = ask(server)
    before = pickle.dumps(answer)
    reward = Column.of(ColumnSpec("reward", "float64", "row"), [1.0, 2.0])
    server.write([Writing(1, np.arange(2), Stored.of(Columns.of([reward]), "second"))], 6, False)
    server.put_blob("other", "blob2", 4, 1)
    server.drop([1])
    assert pickle.dumps(answer) == before

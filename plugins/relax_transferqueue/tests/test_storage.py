"""What is in TransferQueue's storage units: as much as the run holds, and no more."""

import gc
import threading
import time
from typing import Any

import pytest

from relax_core.api.errors import TransportError
from relax_core.testing.transport.fixtures import ACTOR, COLUMNS, REWARDER, add_group, reward, taken, token_rows

pytest.importorskip("transfer_queue")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_queue")]

DEADLINE = 30.0


def rows_in_storage(run_id: str) -> int:
    import transfer_queue as tq

    return len(tq.kv_list(run_id).get(run_id, {}))


def wait_until_there_are(count: int, run_id: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while rows_in_storage(run_id) != count:
        assert time.monotonic() < deadline, f"{rows_in_storage(run_id)} rows are in TransferQueue, not {count}"
        time.sleep(0.1)


def test_what_nobody_needs_any_more_is_cleared(ends: Any) -> None:
    transport = ends.make(attach=True)
    transport.open(COLUMNS, (REWARDER, ACTOR))
    run_id = ends.run_id(transport)
    ids = {group: add_group(transport, group) for group in range(3)}
    with pytest.raises(TransportError, match="closed"):
        transport.append(0, token_rows(0, (2, 3))[:2])
    transport.append(0, token_rows(0, (2, 3)), close=True, repeat=True)
    transport.drop([2])
    reward(transport, [*ids[0], *ids[2]])
    for data, group in ((b"picture", 0), (b"picture", 1), (b"sound", 1), (b"sound", 2)):
        transport.put_blob(data, group)
    wait_until_there_are(5, run_id)  # two appends, one write, two blobs
    snapshot = transport.snapshot()
    transport.restore(snapshot)
    wait_until_there_are(4, run_id)  # each group is in one row now
    reward(transport, ids[1])
    for name in ("rewarder", "actor"):
        transport.ack(taken(transport.take(name, 2, 2)))
    wait_until_there_are(0, run_id)


def test_a_run_does_not_keep_what_one_of_its_name_left_behind(ends: Any) -> None:
    transport = ends.make(attach=True)
    transport.open(COLUMNS, (REWARDER, ACTOR))
    run_id = ends.run_id(transport)
    add_group(transport, 0)
    with pytest.raises(TransportError, match="has a transport on this cluster already"):
        ends.make(run_id, attach=True).open(COLUMNS, (REWARDER, ACTOR))
    assert rows_in_storage(run_id) == 1
    del transport
    deadline = time.monotonic() + DEADLINE
    while True:
        again = ends.make(run_id, attach=True)
        try:
            again.open(COLUMNS, (REWARDER, ACTOR))
            break
        except TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert again.depth()["rows"] == rows_in_storage(run_id) == 0


def test_a_connection_ends_in_its_own_thread_when_its_transport_is_gone(ends: Any) -> None:
    transport = ends.make(attach=True)
    transport.open(COLUMNS, (REWARDER, ACTOR))
    add_group(transport, 0)
    client, threads = transport._queue._client, []
    close = client.close
    client.close = lambda: (close(), threads.append(threading.current_thread().name))
    del transport
    gc.collect()
    deadline = time.monotonic() + DEADLINE
    while not threads:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert threads == ["transferqueue"]
    assert client.zmq_context.closed

"""The transport on Ray between two nodes: each has an object store of its own, and one of them may go."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from relax_core.api.context import Context
from relax_core.testing.transport import works
from relax_core.testing.transport.fixtures import ACTOR, COLUMNS, REWARDER, groups_of, taken
from relax_core.transports.ray.config import RayTransportConfig
from relax_core.transports.ray.transport import RayTransport

ROWS, LENGTH = 64, 2048


class Other:
    "An end on the other node."

    def __init__(self):
        self.end = RayTransport(RayTransportConfig(), Context("two-nodes", 0, Path()))

    def node(self):
        return ray.get_runtime_context().get_node_id()

    def append(self, group):
        works.add_wide(self.end, group, ROWS, LENGTH)

    def take(self):
        lease = taken(self.end.take("rewarder", timeout=20))
        tokens = self.end.fetch(lease, ["tokens"])["tokens"]
        return groups_of(lease), tokens.lengths.tolist(), int(tokens.values.sum())


store = {"object_store_memory": 100 << 20, "include_dashboard": False}
cluster = Cluster()
try:
    cluster.add_node(num_cpus=2, **store)
    second = cluster.add_node(num_cpus=2, resources={"second": 1}, **store)
    cluster.connect()
    transport = RayTransport(RayTransportConfig(), Context("two-nodes", 0, Path()))
    transport.open(COLUMNS, (REWARDER, ACTOR))
    other = ray.remote(num_cpus=0, resources={"second": 1})(Other).remote()
    assert ray.get(other.node.remote()) != ray.get_runtime_context().get_node_id()
    ray.get(other.append.remote(3))
    lease = taken(transport.take("rewarder", timeout=20))
    assert (transport.fetch(lease, ["tokens"])["tokens"].values == 3).all()
    works.add_wide(transport, 5, ROWS, LENGTH)
    assert ray.get(other.take.remote()) == ([5], [LENGTH] * ROWS, 5 * ROWS * LENGTH)
    ray.get(other.append.remote(7))
    cluster.remove_node(second, allow_graceful=False)
    transport.reclaim("rewarder")
    lease = taken(transport.take("rewarder", 3, 3, timeout=20))
    tokens = transport.fetch(lease, ["tokens"])["tokens"]
    assert groups_of(lease) == [3, 5, 7] and tokens.values.sum() == 15 * ROWS * LENGTH
    print("rows outlive the node they came from")
finally:
    ray.shutdown()
    cluster.shutdown()
"""


def test_rows_go_between_nodes_and_outlive_the_one_they_came_from(tmp_path: Path) -> None:
    program = tmp_path / "two_nodes.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "RAY_raylet_start_wait_time_s": "120"}
    ended = subprocess.run(
        [sys.executable, program], timeout=280, capture_output=True, text=True, check=False, env=environment
    )
    assert "rows outlive the node they came from" in ended.stdout, ended.stderr[-3000:]

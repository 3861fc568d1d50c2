"""The benchmark of transports: its parts, for a moment, and what its stored results say. Nothing is timed."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"

BATCHES_TO_RING = {"r1K_b256": 11.0, "r64K_b64": 2.0, "r4M_b4": 2.0, "mix_b64": 5.0}
"""How many times the CPU time of the bare ring the transport in shared memory may take, by shape. Aimed at are 2 times;
where batches are small they are missed, for the reason that the documentation gives, and held is where it stands.
"""

ROW_TO_ZEROMQ = 4.0
"""The same for a row at a time against ZeroMQ; aimed at are 3 times."""

MEMORY_ROWS_PER_S = 100_000


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("transport")


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    """The cells of the stored results, by way and shape."""
    cells: dict[str, Any] = json.loads((BENCHMARKS / "results" / "transport.json").read_text(encoding="utf-8"))["cells"]
    return cells


def ratio(stored: dict[str, Any], way: str, other: str, shape: str) -> float:
    """How many times the CPU time of another way a way takes."""
    mine, its = (stored[name][shape]["cpu_us_per_batch"] for name in (way, other))
    return float(mine / its)


@pytest.mark.parametrize("way", ["memcpy", "relax memory", "relax shm", "ring", "ring with calls"])
def test_a_way_carries_batches(benchmark: Any, way: str) -> None:
    cell = benchmark.measure(way, benchmark.SHAPES["mix_b1"], seconds=0.1)
    assert cell["rows_per_s"] > 0 and cell["cpu_us_per_batch"] >= 0


IN_ACTORS = """
from transport import SHAPES, cluster, measure
with cluster(["ray numpy"]):
    for way in ("ray numpy", "relax ray"):
        assert measure(way, SHAPES["mix_b1"], 0.1)["rows_per_s"] > 0
"""


@pytest.mark.slow
def test_ways_of_actors_carry_batches() -> None:
    # In a process that has no cluster yet.
    subprocess.run([sys.executable, "-c", IN_ACTORS], cwd=BENCHMARKS, check=True, timeout=300)


def test_batches_are_as_large_as_their_names_say(benchmark: Any) -> None:
    for name, rows, nbytes in (("r1K_b256", 256, 1 << 10), ("r64K_b64", 64, 1 << 16), ("r4M_b4", 4, 1 << 22)):
        columns = benchmark.batch(benchmark.SHAPES[name])
        assert benchmark.values_bytes(columns) == rows * nbytes
    mixed = benchmark.batch(benchmark.SHAPES["mix_b64"])
    assert [len(column) for column in mixed] == [64] * 7


def test_stored_results_are_whole_and_the_documentation_shows_them(benchmark: Any, stored: dict[str, Any]) -> None:
    assert {"ring", "zeromq", "relax memory", "relax shm"} <= set(stored) <= set(benchmark.WAYS)
    assert {name for name, row in stored.items() if set(row) != set(benchmark.SHAPES)} == set()
    page = (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8")
    assert benchmark.table(stored) in page, "the table is not that of the results"


@pytest.mark.parametrize("shape", BATCHES_TO_RING)
def test_batches_in_shared_memory_cost_a_few_times_what_the_bare_ring_does(stored: dict[str, Any], shape: str) -> None:
    assert ratio(stored, "relax shm", "ring", shape) <= BATCHES_TO_RING[shape]


def test_large_rows_cost_no_more_than_in_the_object_store_of_ray(stored: dict[str, Any]) -> None:
    assert ratio(stored, "relax shm", "ray numpy", "r4M_b4") <= 1.0


def test_mixed_batches_cost_many_times_less_than_with_transferqueue(stored: dict[str, Any]) -> None:
    assert ratio(stored, "transferqueue", "relax shm", "mix_b64") >= 50


def test_a_row_at_a_time_costs_a_few_times_what_zeromq_does(stored: dict[str, Any]) -> None:
    assert ratio(stored, "relax shm", "zeromq", "mix_b1") <= ROW_TO_ZEROMQ


@pytest.mark.parametrize("shape", ["r1K_b256", "mix_b64"])
def test_memory_carries_many_rows_with_all_checks(stored: dict[str, Any], shape: str) -> None:
    assert stored["relax memory"][shape]["rows_per_s"] >= MEMORY_ROWS_PER_S

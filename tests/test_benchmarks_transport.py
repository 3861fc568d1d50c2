"""The benchmark of transports: its parts, for a moment. Nothing is timed."""

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("transport")


@pytest.mark.parametrize("way", ["memcpy", "relax memory", "relax shm", "ring"])
def test_a_way_carries_batches(benchmark: Any, way: str) -> None:
    cell = benchmark.measure(way, benchmark.SHAPES["mix_b1"], seconds=0.1)
    assert cell["rows_per_s"] > 0 and cell["cpu_us_per_batch"] >= 0


def test_batches_are_as_large_as_their_names_say(benchmark: Any) -> None:
    for name, rows, nbytes in (("r1K_b256", 256, 1 << 10), ("r64K_b64", 64, 1 << 16), ("r4M_b4", 4, 1 << 22)):
        columns = benchmark.batch(benchmark.SHAPES[name])
        assert benchmark.values_bytes(columns) == rows * nbytes
    mixed = benchmark.batch(benchmark.SHAPES["mix_b64"])
    assert [len(column) for column in mixed] == [64] * 7

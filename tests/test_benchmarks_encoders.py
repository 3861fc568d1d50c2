"""The benchmark of encoders: its cases and what it makes of them. Nothing is timed."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("encoders")


def test_both_sides_of_a_case_make_the_same(benchmark: Any, tmp_path: Path) -> None:
    cases = benchmark.cases(tmp_path)
    for name in ("image 640 x 480", "sound of 1 s at 16000 Hz, qwen3_omni_moe"):
        case = cases[name]
        found = case.encoder.inputs([case.encoder.encode(case.kind, case.data)], "cpu")
        wanted = case.processor(case.data)
        key = "pixel_values" if case.kind == "image" else "input_features"
        np.testing.assert_allclose(found[key], wanted[key], rtol=1e-5, atol=1e-6)


def test_a_row_of_a_group_costs_an_eighth(benchmark: Any, tmp_path: Path) -> None:
    costs = benchmark.measure(benchmark.cases(tmp_path)["image 64 x 64"], rounds=1)
    assert costs["in_a_group"] == pytest.approx(benchmark.GROUP * costs["alone"], rel=0.01)

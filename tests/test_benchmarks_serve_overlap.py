"""The benchmark of overlap on Ray Serve: what it makes of a run's folder, and three batches. Nothing is timed."""

import importlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """The benchmark's module, which finds its neighbours as a script does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("serve_overlap")


def write(folder: Path, name: str, lines: list[dict[str, Any]]) -> None:
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_numbers_are_those_of_the_run_s_folder(bench: Any, tmp_path: Path) -> None:
    case = bench.Case(update=2.0, batches=2, tasks=1, samples=2, slots=2)
    trajectories = [("0/0", 100.0, 4.0), ("0/1", 100.5, 6.0), ("1/0", 104.0, 1.0), ("1/1", 106.0, 1.0)]
    write(
        tmp_path,
        bench.TRAJECTORIES,
        [{"key": key, "asked": asked, "seconds": seconds} for key, asked, seconds in trajectories],
    )
    write(tmp_path, bench.UPDATES, [{"made": 108.5}, {"made": 112.0}])
    trained = [{"event": "trained", "group": group, "update": group + 1} for group in (0, 1)]
    write(tmp_path, "ledger.jsonl", [{"event": "issued", "group": 0}, *trained])
    waits = {"perf/data_wait_s": 0.25, "perf/rollout_exposed_s": 0.125}
    first = {"perf/data_wait_s": 9.0, "perf/rollout_exposed_s": 9.0}
    steps = [{"stream": "train", "step": 1, **first}, {"stream": "train", "step": 2, **waits}]
    write(tmp_path, "metrics.jsonl", [*steps, {"stream": "eval", "step": 2}])
    (tmp_path / "summary.json").write_text(json.dumps({"trained": 2, "dropped": 0, "max_lag": 1}))
    found = bench.numbers(case, bench.Mode(together=True, staleness=1), tmp_path)
    # Two slots: 10 s of the first group take 5 s, and two updates of 2 s follow; that is more than 6 s + 2 s.
    assert (found["wall_s"], found["ideal_s"], found["efficiency"]) == (12.0, 9.0, 0.75)
    assert (found["data_wait_s"], found["exposed_s"]) == (0.25, 0.125)
    assert (found["trained_groups"], found["lag_max"]) == (2, 1)


def test_the_stored_results_overlap_as_well_as_promised_and_are_documented(bench: Any) -> None:
    stored = json.loads(bench.RESULT.read_text(encoding="utf-8"))
    for name, case in stored["cases"].items():
        for mode in ("max_staleness 1, streaming", "max_staleness 2"):
            result = case["modes"][mode]
            assert result["efficiency"] >= 0.9
            assert result["speed_up"] >= stored["speed_up_of_the_original"]
            assert name == "rollout-bound" or result["data_wait_s"] <= 0.11
    page = (BENCHMARKS.parent / "docs" / "measurements.md").read_text(encoding="utf-8")
    for name, case in stored["cases"].items():
        for mode, result in case["modes"].items():
            figures = f"{result['efficiency']:.2f} | {result['speed_up']:.2f} | {result['data_wait_s']:.3f}"
            assert f"| {name} | {mode} | {figures} |" in page


@pytest.mark.slow
def test_a_run_with_the_sleeping_parts_trains_all_and_takes_no_less_than_the_bound(bench: Any, tmp_path: Path) -> None:
    case = replace(bench.CASES["balanced"], update=0.1, batches=3, tasks=4, samples=2, slots=4, latency=0.02)
    found = bench.measure(case, bench.MODES["max_staleness 1"], tmp_path)
    assert found["trained_groups"] == case.batches * case.tasks
    assert found["lag_max"] <= 1
    assert found["ideal_s"] <= found["wall_s"]
    assert found["cpu_s_per_batch"] > 0

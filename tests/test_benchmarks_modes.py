"""What the stored results of the benchmarks on Ray Serve say, and that docs show them. Nothing is trained or timed."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
RESULT = BENCHMARKS / "results" / "modes.json"
CLOSE = 0.05
REFERENCE = "local colocate"

pytestmark = pytest.mark.skipif(not RESULT.exists(), reason="nothing is stored: python benchmarks/modes.py")


@pytest.fixture(scope="module")
def modes() -> Iterator[Any]:
    """The benchmark's module, which finds its neighbours as a script does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("modes")


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    """The stored results."""
    results: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8"))
    return results


def test_every_mode_has_a_run_of_every_seed_with_its_present_settings(modes: Any, stored: dict[str, Any]) -> None:
    assert stored["settings"] == {name: dict(mode.settings) for name, mode in modes.MODES.items()}
    assert {name: set(runs) for name, runs in stored["modes"].items()} == {
        name: set(map(str, modes.SEEDS)) for name in modes.MODES
    }


def test_every_mode_reaches_the_accuracy_of_one_process_in_turns(stored: dict[str, Any]) -> None:
    reached = {name: fmean(run["eval_last"] for run in runs.values()) for name, runs in stored["modes"].items()}
    assert {name: mean for name, mean in reached.items() if abs(mean - reached[REFERENCE]) > CLOSE} == {}


def test_every_run_trained_all_batches_within_its_bound(stored: dict[str, Any]) -> None:
    for name, runs in stored["modes"].items():
        bound = stored["settings"][name].get("max_staleness", 0)
        assert {run["updates"] for run in runs.values()} == {100}
        assert {run["trained"] for run in runs.values()} == {3200}
        assert max(run["max_lag"] for run in runs.values()) <= bound


def test_the_documentation_shows_the_stored_results(modes: Any, stored: dict[str, Any]) -> None:
    assert modes.table(stored["modes"]) in (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8")

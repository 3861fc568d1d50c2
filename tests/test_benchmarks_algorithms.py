"""The benchmark of algorithms: two updates of it, what its stored results say, and that docs show them."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
NEAR_TEACHER = 0.05


@pytest.fixture(scope="module")
def algorithms() -> Iterator[Any]:
    """The benchmark's module, which finds its neighbours as a script does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("algorithms")


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    """The stored results."""
    results: dict[str, Any] = json.loads((BENCHMARKS / "results" / "algorithms.json").read_text(encoding="utf-8"))
    return results


def ends(algorithm: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """By seed: accuracy before the first and after the last update."""
    curves = {seed: run["accuracy"] for seed, run in algorithm["seeds"].items()}
    return {seed: (curve[0][1], curve[-1][1]) for seed, curve in curves.items()}


def test_those_that_learn_from_their_own_answers_take_part_and_teachers_are_trained_before(algorithms: Any) -> None:
    names = [competitor.name for competitor in algorithms.competitors()]
    assert {"grpo", "rloo", "opd"} <= set(names)
    assert {"sft", "dpo"}.isdisjoint(names), "these learn from labels"
    taught = [competitor.name for competitor in algorithms.competitors() if competitor.taught]
    assert names.index(algorithms.TEACHER) < min(names.index(name) for name in taught)
    assert set(algorithms.SETTINGS) <= set(names), "settings of an algorithm that is not installed"


def test_every_installed_algorithm_has_stored_results_with_its_present_settings(
    algorithms: Any, stored: dict[str, Any]
) -> None:
    names = {competitor.name for competitor in algorithms.competitors()}
    found = stored["algorithms"]
    assert names - set(found) == set(), "not in the results; run: python benchmarks/algorithms.py"
    assert set(found) - names == set(), "in the results, but not installed"
    for name, algorithm in found.items():
        assert algorithm["settings"] == algorithms.SETTINGS.get(name, {}), name
        assert set(algorithm["seeds"]) == {str(seed) for seed in algorithms.SEEDS}, name
        assert {run["accuracy"][-1][0] for run in algorithm["seeds"].values()} == {stored["updates"]}, name
    assert stored["updates"] == algorithms.UPDATES


def test_each_begins_with_the_same_policy_and_raises_its_accuracy_on_every_seed(stored: dict[str, Any]) -> None:
    reached = {
        f"{name}, seed {seed}": pair
        for name, algorithm in stored["algorithms"].items()
        for seed, pair in ends(algorithm).items()
    }
    assert len({first for first, _ in reached.values()}) == 1, "not from one checkpoint"
    assert {run: pair for run, pair in reached.items() if pair[1] <= pair[0]} == {}


def test_a_student_comes_as_far_as_its_teacher(stored: dict[str, Any]) -> None:
    taught = {name: found for name, found in stored["algorithms"].items() if "teacher" in found}
    assert taught
    for name, algorithm in taught.items():
        teachers = ends(stored["algorithms"][algorithm["teacher"]])
        gaps = {seed: teachers[seed][1] - last for seed, (_, last) in ends(algorithm).items()}
        assert max(gaps.values()) <= NEAR_TEACHER, (name, gaps)


def test_seeds_differ_more_than_algorithms_as_the_documentation_says(stored: dict[str, Any]) -> None:
    reached = [[last for _, last in ends(algorithm).values()] for algorithm in stored["algorithms"].values()]
    means = [fmean(lasts) for lasts in reached]
    assert max(max(lasts) - min(lasts) for lasts in reached) > max(means) - min(means)


def test_the_documentation_shows_the_stored_results(algorithms: Any, stored: dict[str, Any], tmp_path: Path) -> None:
    page = algorithms.algorithms_page
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.with_table(text, stored) == text, "run: python benchmarks/algorithms_page.py"
    for name in stored["algorithms"]:
        assert f"| `{name}` |" in text
    page.draw(stored, tmp_path / "algorithms.svg")
    drawn = [path.read_text(encoding="utf-8") for path in (tmp_path / "algorithms.svg", page.FIGURE)]
    assert drawn[0] == drawn[1], "run: python benchmarks/algorithms_page.py"


def test_a_page_without_a_place_for_the_table_is_refused(algorithms: Any, stored: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no place for the table"):
        algorithms.algorithms_page.with_table("# Measurements\n", stored)


def test_it_trains_an_algorithm_once_and_again_when_its_configuration_changes(
    algorithms: Any, tmp_path: Path, tiny_model_path: Path
) -> None:
    [rloo] = [competitor for competitor in algorithms.competitors() if competitor.name == "rloo"]

    def measured(updates: int) -> dict[str, Any]:
        result: dict[str, Any] = algorithms.measure(rloo, tmp_path, tiny_model_path, updates, [0])
        return result["seeds"]["0"]

    first = measured(2)
    assert [update for update, _ in first["accuracy"]] == [0, 2]
    trained = (tmp_path / "rloo-0" / "metrics.jsonl").stat().st_mtime_ns
    assert measured(2) == first
    assert (tmp_path / "rloo-0" / "metrics.jsonl").stat().st_mtime_ns == trained
    assert [update for update, _ in measured(4)["accuracy"]] == [0, 4]


def test_a_run_that_was_interrupted_is_trained_anew(algorithms: Any, tmp_path: Path, tiny_model_path: Path) -> None:
    [grpo] = [competitor for competitor in algorithms.competitors() if competitor.name == "grpo"]
    config = algorithms.configuration(grpo, 0, tmp_path, tiny_model_path, 2)
    summary = algorithms.train(config).path / "summary.json"
    summary.write_text(json.dumps({"status": "interrupted"}))
    assert json.loads((algorithms.train(config).path / "summary.json").read_text())["status"] == "completed"


def test_a_teacher_that_was_not_trained_is_told(algorithms: Any, tmp_path: Path, tiny_model_path: Path) -> None:
    taught = next(competitor for competitor in algorithms.competitors() if competitor.taught)
    with pytest.raises(FileNotFoundError, match="grpo-0 has no checkpoint"):
        algorithms.configuration(taught, 0, tmp_path, tiny_model_path, 2)

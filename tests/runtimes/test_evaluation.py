"""Evaluations of whole runs: several sets, failures, and that training is the same with and without them."""

import json
from pathlib import Path
from typing import Any

import pytest

from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.checkpoint.store import CheckpointStore
from relax_core.config.load import load_run
from relax_core.roles.evaluator import Evaluator
from relax_core.runtimes import evaluation
from relax_core.runtimes.local import run_local
from tests.runtimes.conftest import Finished, Run

HELDOUT = "{name: generated, task: reverse, digits: 3, split: heldout, heldout: 7}"
EASY = f"{{dataset: {HELDOUT}, tasks: 3}}"
HARD = f"{{dataset: {HELDOUT}, samples_per_task: 3, sampling: {{temperature: 1.0, top_p: 0.9}}}}"


def sets(every: int = 2, **chosen: str) -> str:
    """An override that evaluates on some sets."""
    named = ", ".join(f"{name}: {settings}" for name, settings in chosen.items())
    return f"eval={{every: {every}, sampling: {{max_new_tokens: 3}}, sets: {{{named}}}}}"


def training(finished: Finished) -> list[dict[str, Any]]:
    """Ids, losses, and every step of every task, apart from times and from what is counted of evaluations."""
    lines = [*finished.metrics(), *finished.lines("samples.jsonl"), *finished.lines("ledger.jsonl")]
    other = ("perf/", "sync/", "time", "count/eval/")
    kept = [line for line in lines if line.get("stream") != "eval"]
    return [{key: value for key, value in line.items() if not key.startswith(other)} for line in kept]


def failures(finished: Finished) -> list[str]:
    return [line["message"] for line in finished.lines("events.jsonl") if line["name"] == "eval_failed"]


def test_each_set_has_its_own_tasks_sampling_metrics_and_scores(run: Run) -> None:
    finished = run("sets", sets(easy=EASY, hard=HARD))
    lines = finished.metrics("eval")
    easy = [line for line in lines if "eval/easy/reward" in line]
    hard = [line for line in lines if "eval/hard/reward" in line]
    assert [line["step"] for line in easy] == [line["step"] for line in hard] == [0, 2, 4]
    assert [line["eval/hard/version"] for line in hard] == [0, 2, 4]
    assert all(line["eval/hard/reward_best"] >= line["eval/hard/reward"] for line in hard)
    assert "eval/easy/reward_best" not in easy[0]
    assert "eval/reward" not in {name for line in lines for name in line}
    texts = [line["name"] for line in finished.lines("samples.jsonl") if line["stream"] == "eval"]
    assert texts == ["easy/sample", "hard/sample"] * 3
    assert finished.summary["evaluations"] == {
        "easy": {"first": easy[0]["eval/easy/reward"], "last": easy[-1]["eval/easy/reward"]},
        "hard": {"first": hard[0]["eval/hard/reward"], "last": hard[-1]["eval/hard/reward"]},
    }
    assert finished.summary["eval_first"] is finished.summary["eval_last"] is None


@pytest.fixture
def without(run: Run) -> list[dict[str, Any]]:
    """The training of a run that evaluates nothing."""
    return training(run("without"))


def raising(folder: Path) -> str:
    """A set whose reward raises."""
    (folder / "bad.py").write_text("def score(response):\n    raise ValueError('no score')\n")
    return f"{{dataset: {HELDOUT}, reward: {{name: python, function: '{folder}/bad.py:score', workers: 1}}}}"


def too_long(folder: Path) -> str:
    """A set with a prompt that fills the engine's context."""
    (folder / "long.jsonl").write_text(json.dumps({"prompt": "x" * 100_000}) + "\n")
    return f"{{dataset: {{name: jsonl, path: '{folder}/long.jsonl'}}}}"


def test_a_set_that_fails_stops_neither_the_others_nor_training(
    run: Run, tmp_path: Path, without: list[dict[str, Any]]
) -> None:
    finished = run("failing", sets(raising=raising(tmp_path), long=too_long(tmp_path), hard=HARD))
    assert training(finished) == without
    assert any(line.get("train/loss") for line in without)
    assert finished.summary["counters"]["eval/error"] == 6
    raised, long = failures(finished)[:2]
    assert raised.startswith(f"eval/raising: reward {tmp_path}/bad.py:score, task ")
    assert "ValueError: no score" in raised
    assert long.startswith("eval/long: request 'eval/long/0/0': a prompt of 100000 tokens leaves no room")
    evaluations = finished.summary["evaluations"]
    assert evaluations["raising"] == evaluations["long"] == {"first": None, "last": None}
    assert evaluations["hard"]["last"] is not None


def test_a_deadline_that_passes_ends_the_evaluation_alone(
    run: Run, monkeypatch: pytest.MonkeyPatch, without: list[dict[str, Any]]
) -> None:
    def hurried(held_out: Any, engine: Any, codec: Any, scorer: Any, seed: int, timeout: float) -> Evaluator:
        return Evaluator(held_out, engine, codec, scorer, seed, timeout=0.0)

    monkeypatch.setattr(evaluation, "Evaluator", hurried)
    finished = run("hurried", sets(easy=EASY, hard=HARD))
    assert training(finished) == without
    assert finished.summary["counters"]["eval/error"] == 6
    assert failures(finished)[0].startswith("eval/easy: timeouts.generation: the evaluation took more than 0 s")


def test_scores_of_all_sets_survive_a_resume(run: Run) -> None:
    first = run("resumed", sets(easy=EASY, hard=HARD), "updates=2", "checkpoint.every=2")
    config = load_run(first.path / "config.yaml", ["updates=4"])
    directory = RunDirectory.create(first.path.parent, "resumed", config.resolved(), 0, resume=True)
    checkpoint = CheckpointStore(directory.checkpoints, 2).latest()
    again = Finished(first.path, run_local(config, directory, checkpoint))
    whole = run("whole", sets(easy=EASY, hard=HARD))
    assert again.summary["evaluations"] == whole.summary["evaluations"]
    assert again.summary["evaluations"]["hard"]["first"] == first.summary["evaluations"]["hard"]["first"]

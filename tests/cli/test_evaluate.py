"""``relax eval``: the checkpoints of a run, and files, on held-out tasks."""

import json
from pathlib import Path
from typing import Any

import pytest

from relax_core.checkpoint.run_directory import RunDirectory
from tests.cli.conftest import Relax, write_reward

TASKS = "{name: jsonl, path: my.jsonl}"
EVAL = f"eval={{every: 0, tasks: 4, dataset: {TASKS}, sampling: {{max_new_tokens: 3}}}}"
SET = f"{{dataset: {TASKS}}}"
SETS = f"eval={{tasks: 4, sampling: {{max_new_tokens: 3}}, sets: {{few: {SET}, more: {SET}}}}}"

REFUSED = [
    (["mien"], "there is no run 'runs/mien'; did you mean 'mine'?"),
    (["mine", "--checkpoint", "7"], "--checkpoint: run 'runs/mine' has none of update 7; there are 1, 2"),
    (["mine", "--checkpoint", "0"], "--checkpoint: run 'runs/mine' has none of update 0; there are 1, 2"),
    (["mine", "--set", "eval=null"], "runs/mine/config.yaml: eval: missing; name held-out tasks"),
    (["mine", "--set", "eval.task=3"], "runs/mine/config.yaml: eval.task: unknown key (value 3); did you mean"),
    (["mine", "--set", "model.path=model"], "--set model.path: would be ignored: the model is runs/mine/checkpoints/"),
    (["mine", "--set", 'sampling.stop=["***"]'], "eval: sampling.stop.0 is not stored, since it looks secret"),
    (["mine", "--set", "eval.dataset.path=no.jsonl"], "dataset.path: no.jsonl: No such file"),
    (["no.yaml"], "no.yaml: no such file"),
    (["my.jsonl", "--checkpoint", "1"], "--checkpoint: 1 would be ignored: my.jsonl is a file"),
]


@pytest.fixture
def mine(train: Relax) -> Path:
    """The run ``mine`` of two updates, each with a checkpoint."""
    settings = ("--set", "checkpoint.every=1", "--set", "trainer.learning_rate=0.01", "--set", EVAL)
    ended = train("--name", "mine", *settings)
    assert ended.code == 0, ended.err
    return Path("runs/mine")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def evaluated(relax: Relax, *arguments: str) -> dict[str, Any]:
    ended = relax("eval", *arguments)
    assert ended.code == 0, ended.err
    result: dict[str, Any] = json.loads(ended.out)
    return result


def test_a_run_is_evaluated_beside_itself_and_only_the_result_is_written(mine: Path, relax: Relax) -> None:
    before = contents(mine)
    with RunDirectory(mine).held():  # as by the process that trains
        newest = evaluated(relax, "mine")
        older = evaluated(relax, "mine", "--checkpoint", "1", "--set", "eval.tasks=3")
    summary = json.loads((mine / "summary.json").read_text())
    assert (newest["run"], newest["checkpoint"]) == ("mine", 2)
    assert newest["sets"]["eval"]["score"] == summary["eval_last"]
    assert (newest["sets"]["eval"]["tasks"], older["sets"]["eval"]["tasks"]) == (4, 3)
    assert newest["sets"]["eval"]["metrics"]["response_tokens"] > 0
    assert older["checkpoint"] == 1
    after = contents(mine)
    lines = [json.loads(line) for line in after.pop(str(mine / "evaluations.jsonl")).splitlines()]
    assert after == before
    assert [line["checkpoint"] for line in lines] == [2, 1]
    assert (lines[1]["sets"], lines[1]["eval"]["tasks"]) == (older["sets"], 3)


def test_several_sets_of_which_one_fails_are_all_told(mine: Path, relax: Relax) -> None:
    write_reward("raise ValueError('not today')")
    whole = evaluated(relax, "mine", "--set", SETS, "--set", "eval.sets.few.tasks=2")
    assert {name: result["tasks"] for name, result in whole["sets"].items()} == {"few": 2, "more": 4}
    bad = "eval.sets.few.reward={name: python, function: 'bad.py:score'}"
    ended = relax("eval", "mine", "--set", SETS, "--set", bad)
    assert ended.code == 1
    assert ended.message.startswith("relax: eval: 1 of 2 sets failed; few: reward bad.py:score, task ")
    sets = json.loads(ended.out)["sets"]
    assert "ValueError: not today" in sets["few"]["error"]
    assert sets["more"] == whole["sets"]["more"]
    assert "score" not in sets["few"]


def test_a_file_is_evaluated_with_the_model_that_it_names(mine: Path, relax: Relax) -> None:
    settings = ("--set", f"model.path={mine}/checkpoints/update-000002/policy")
    result = evaluated(relax, str(mine / "config.yaml"), *settings)
    assert result["sets"] == evaluated(relax, "mine")["sets"]
    assert result["file"] == str(mine / "config.yaml")


def test_what_cannot_be_evaluated_is_one_line(mine: Path, relax: Relax) -> None:
    before = contents(mine)
    for arguments, line in REFUSED:
        ended = relax("eval", *arguments)
        assert (ended.code, ended.out) == (2, ""), arguments
        assert line in ended.message
    assert contents(mine) == before


def test_a_run_without_a_checkpoint_has_nothing_to_evaluate(mine: Path, relax: Relax) -> None:
    for marker in mine.glob("checkpoints/*/COMPLETE"):
        marker.unlink()
    ended = relax("eval", "mine")
    assert (ended.code, ended.message) == (2, "relax: eval: run 'runs/mine' has no complete checkpoint")

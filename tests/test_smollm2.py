"""The example with a real pretrained model, as far as a test can go: its tasks, its reward, one update."""

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from relax_core.catalogue.entries import CATALOGUE, is_model

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "smollm2"


def test_the_files_of_tasks_are_those_that_the_script_makes() -> None:
    made = runpy.run_path(str(EXAMPLE / "make_tasks.py"))
    lines = [line for name in ("heldout", "train") for line in (EXAMPLE / f"{name}.jsonl").read_text().splitlines()]
    stored = [json.loads(line) for line in lines]
    assert stored == made["tasks"]()
    assert len({json.dumps(task["prompt"]) for task in stored}) == len(stored), "a task occurs twice"


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("3 + 5 = 8. <answer>8</answer>", 1.5),
        ("<answer> 8 </answer>\n", 1.5),
        ("3 + 5 = 9. <answer>9</answer>", 0.5),
        ("<answer>8</answer> is the answer", 1.375),
        ("<answer>8</answer> or <answer>8</answer>", 0.125),
        ("<answer>eight</answer>", 0.375),
        ("3 + 5 = 8. <answer>8", 0.125),
        ("8", 0.0),
    ],
)
def test_the_reward_pays_for_every_part_of_the_format_and_for_being_right(response: str, reward: float) -> None:
    score = runpy.run_path(str(EXAMPLE / "reward.py"))["score"]
    assert score(response, "8")["reward"] == reward


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not is_model(CATALOGUE["smollm2"].folder), reason="absent: relax models add smollm2")
def test_one_update_of_the_real_model(tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("relax"))
    command = [program, "train", "examples/smollm2/arithmetic.yaml", "--runs-dir", str(tmp_path), "--name", "run"]
    settings = ["updates=1", "batch.tasks=1", "batch.samples_per_task=4", "eval.tasks=4"]
    options = [part for setting in settings for part in ("--set", setting)]
    subprocess.run([*command, *options], cwd=ROOT, env={**os.environ, "HF_HUB_OFFLINE": "1"}, check=True, timeout=800)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["updates"], summary["trained"]) == ("completed", 1, 1)
    assert summary["eval_first"] > 0, "the pretrained model answers no task at all, not even in part"
    shutil.rmtree(tmp_path / "run" / "checkpoints")  # optimizer and masters: almost 2 GB

"""The examples that see and hear: they learn, their tasks are what they say, and they run where roles are apart."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
BENCHMARKS = ROOT / "benchmarks"
BESIDE = Path(sys.prefix) / "examples"
"""Where `make` puts what the data of examples are made with."""

RESULT = BENCHMARKS / "results" / "media_examples.json"
SCRIPTS = ("vision/make_digits", "video/make_motion", "audio/make_spoken_digits", "omni/make_agree")
GAINS = {
    "vision/digits": (0.15, 0.85),
    "video/motion": (0.2, 0.9),
    "audio/spoken_digits": (0.3, 0.6),
    "omni/agree": (0.2, 0.0),
}
"""By how much the accuracy rises by reward alone, and what it reaches."""

speaks = pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="no espeak-ng speaks on this machine")


@pytest.fixture(scope="module")
def data() -> None:
    """The tasks of all examples, where there are none yet."""
    environment = {**os.environ, "PYTHONPATH": str(BESIDE)}
    if subprocess.run([sys.executable, "-c", "import sklearn"], check=False, env=environment, timeout=60).returncode:
        pytest.skip("the digits are scikit-learn's, which is not there")
    for script in SCRIPTS:
        if not (EXAMPLES / script).with_name("data").joinpath("heldout.jsonl").exists():
            command = [sys.executable, str(EXAMPLES / f"{script}.py")]
            subprocess.run(command, check=True, env=environment, timeout=600)


def tasks(example: str, split: str) -> list[dict[str, Any]]:
    """The records of a split."""
    lines = (EXAMPLES / example / "data" / f"{split}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def train(folder: Path, example: str, *settings: str, runtime: str = "local") -> dict[str, Any]:
    """`relax train` of an example in a process of its own; its summary."""
    program = str(Path(sys.executable).with_name("relax"))
    command = [program, "train", f"examples/{example}.yaml", "--runs-dir", str(folder), "--name", "run"]
    options = [part for setting in settings for part in ("--set", setting)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run([*command, "--runtime", runtime, *options], cwd=ROOT, env=environment, check=True, timeout=1500)
    summary: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text())
    return summary


@pytest.mark.slow
@speaks
def test_nothing_that_is_held_out_is_trained_on(data: None) -> None:
    for example, key in {"vision": "image", "video": "video", "audio": "audio"}.items():
        train_media, heldout = ({task[key] for task in tasks(example, split)} for split in ("train", "heldout"))
        assert not train_media & heldout
    for key in ("image", "audio"):
        both = [{Path(task[key]).name for task in tasks("omni", split)} for split in ("train", "heldout")]
        assert not both[0] & both[1]
    voices = [
        {task["audio"].split("/")[1].split("-", 1)[1] for task in tasks("audio", split)}
        for split in ("train", "heldout")
    ]
    assert not voices[0] & voices[1]


@pytest.mark.slow
@speaks
@pytest.mark.timeout(1600)
@pytest.mark.parametrize("example", GAINS)
def test_it_learns_by_reward_alone(data: None, tmp_path: Path, example: str) -> None:
    summary = train(tmp_path, example)
    gain, reached = GAINS[example]
    assert summary["eval_last"] - summary["eval_first"] >= gain
    assert summary["eval_last"] >= reached
    assert summary["trained"] == summary["issued"] and summary["dropped"] == 0


@pytest.mark.slow
@speaks
@pytest.mark.timeout(900)
@pytest.mark.parametrize("example", GAINS)
def test_it_runs_where_every_role_is_apart(data: None, tmp_path: Path, example: str) -> None:
    settings = ("updates=4", "warmup.updates=2", "mode=fully_async", "max_staleness=1", "eval.every=4", "eval.tasks=8")
    summary = train(tmp_path, example, *settings, "batch.tasks=8", runtime="serve")
    assert (summary["status"], summary["updates"]) == ("completed", 4)
    assert summary["trained"] == summary["issued"] - summary["dropped"] == 32
    assert summary["dropped_reasons"].keys() <= {"stale"}


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """The benchmark's module, which finds its neighbours as a script does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("media_examples")


def test_the_stored_results_are_those_of_every_seed_and_in_the_documentation(bench: Any) -> None:
    stored = json.loads(RESULT.read_text(encoding="utf-8"))["examples"]
    assert {name: set(runs) for name, runs in stored.items()} == {
        name: set(map(str, bench.SEEDS)) for name in bench.EXAMPLES
    }
    for name, (gain, reached) in GAINS.items():
        for run in stored[name].values():
            assert run["eval_last"] - run["eval_first"] >= gain
            assert run["eval_last"] >= reached
    assert bench.table(stored) in (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8")

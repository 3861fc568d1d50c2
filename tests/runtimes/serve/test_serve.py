"""Whole runs on Ray Serve: equal to local ones, and nothing is lost when their processes are killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from relax_core.api.errors import RelaxError
from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.checkpoint.store import CheckpointStore
from relax_core.config.load import RunConfig
from relax_core.dataflow.ledger import verify
from relax_core.runtimes.local import run_local
from tests.runtimes.conftest import Finished
from tests.runtimes.serve.conftest import BASE, DEADLINE, SERVE, Start, Started, until

pytestmark = pytest.mark.slow

WRITES_DOWN = """
def score(prompt, response, label):
    with open({path!r}, "a") as file:
        print(repr((prompt, response)), file=file)
    return float(response[:1].isprintable()) + len(response) / 10
"""
HELDOUT = "{name: generated, task: sort_digits, digits: 2, split: heldout, heldout: 10}"
EVAL = f"eval={{every: 4, tasks: 4, dataset: {HELDOUT}, sampling: {{max_new_tokens: 3}}}}"


def writing_reward(folder: Path, name: str) -> str:
    """An override: a reward that writes down what it judges."""
    path = folder / f"{name}.py"
    path.write_text(WRITES_DOWN.format(path=str(folder / f"{name}.rows")))
    return f"reward={{name: python, function: '{path}:score'}}"


def check_ledger(finished: Finished) -> None:
    summary = finished.summary
    counts = {name: summary[name] for name in ("issued", "trained", "dropped", "pending")}
    assert verify(finished.lines("ledger.jsonl")) == counts
    assert summary["issued"] == summary["trained"] + summary["dropped"] + summary["pending"]


def test_two_ranks_on_serve_compute_what_one_computes_in_one_process(
    start: Start, configure: Callable[..., tuple[RunConfig, RunDirectory]], tmp_path: Path
) -> None:
    stop = f"sampling.stop_token_ids={list(range(128))}"
    settings = ("trainer.learning_rate=0.01", "batch.updates_per_batch=2", "checkpoint.every=2", stop, EVAL)
    served = start("served", *settings, writing_reward(tmp_path, "served")).finish()
    config, directory = configure("one", *settings, writing_reward(tmp_path, "one"))
    local = Finished(directory.path, run_local(config, directory))
    rows = [sorted((tmp_path / f"{name}.rows").read_text().splitlines()) for name in ("served", "one")]
    assert rows[0] == rows[1], "the same rows"
    for left, right in zip(served.metrics(), local.metrics(), strict=True):
        assert right["train/loss"] != 0
        assert left["train/loss"] == pytest.approx(right["train/loss"], rel=1e-6)
        assert left["train/grad_norm"] == pytest.approx(right["train/grad_norm"], rel=1e-5)
        assert left["mismatch/probe_max"] < 1e-5
    # Before the first update nothing travels in a local run: its engine has loaded the same folder, beside its trainer.
    of_all_runtimes = {name for name in served.metrics()[0] if not name.startswith(("engine/", "sync/"))}
    assert of_all_runtimes | {"perf/tokens_during_update"} == local.metrics()[0].keys()
    # A front tells what it has begun once in a while; that may be some groups behind what is trained.
    assert served.metrics()[-1]["rollout/length_trained_to_started"] == pytest.approx(1, rel=0.5)
    assert served.summary.keys() == local.summary.keys()
    assert served.summary["eval_last"] == local.summary["eval_last"]
    assert (served.summary["runtime"], local.summary["runtime"]) == ("serve", "local")
    check_ledger(served)
    resumed = _resumed(configure, served)
    assert resumed.summary["updates"] == 6
    check_ledger(resumed)


def _resumed(configure: Callable[..., Any], served: Finished) -> Finished:
    """What a local checkpoint's run makes of two more updates on Ray Serve."""
    checkpoint = CheckpointStore(served.path / "checkpoints", 2).latest()
    assert checkpoint is not None and checkpoint.update == 4
    config, directory = configure("resumed", "updates=6", "batch.updates_per_batch=2", **SERVE)
    return Started(config, directory, checkpoint).finish()


def test_without_a_budget_a_dead_rank_ends_the_run_and_says_so(start: Start) -> None:
    run = start("rank", "updates=1000", "serve.restarts=0")
    run.trained(4)
    for front in ("rollout", "reward", "advantages", "actor"):
        loaded = [each.path for each in psutil.Process(run.front(front)).memory_maps()]
        assert loaded and not any("libtorch" in path for path in loaded), f"{front} holds no model"
    os.kill(run.rank("actor-1"), signal.SIGKILL)
    with pytest.raises(
        RelaxError, match=r"actor was lost 1 times, serve\.restarts is 0; the last time: actor-1: .*dead"
    ):
        run.finish()
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["issued"] == summary["trained"] + summary["dropped"] + summary["pending"]
    assert not (run.path / "recovery").exists()


def test_a_failing_front_ends_the_run_with_its_cause(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("def score(prompt, response, label):\n    return 1 / 0\n")
    with pytest.raises(RelaxError, match="ZeroDivisionError"):
        start("failing", f"reward={{name: python, function: '{path}:score'}}").finish()


@pytest.mark.parametrize(
    ("number", "sections"),
    [(signal.SIGINT, {}), (signal.SIGTERM, {"mode": "fully_async", "max_staleness": 2})],
    ids=["ctrl_c_in_turns", "sigterm_beside"],
)
def test_an_interrupted_run_ends_with_130_a_checkpoint_of_then_and_no_process(
    ray_cluster: None,
    configure: Callable[..., tuple[RunConfig, RunDirectory]],
    tmp_path: Path,
    tiny_model_path: Path,
    number: signal.Signals,
    sections: dict[str, Any],
) -> None:
    file = tmp_path / "run.yaml"
    run = {**BASE, **sections, "updates": 10000, "batch": {**BASE["batch"], "updates_per_batch": 2}}
    file.write_text(yaml.safe_dump({**run, "model": {"path": str(tiny_model_path)}}))
    program = str(Path(sys.executable).with_name("relax"))
    command = [program, "train", str(file), "--runtime", "serve", "--runs-dir", str(tmp_path), "--name", "interrupted"]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "RAY_ADDRESS": "local"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    ledger = tmp_path / "interrupted" / "ledger.jsonl"
    until("training", lambda: ledger.exists() and ledger.read_text().count('"trained"') > 8)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) > 5
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    _, error = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130, error
    assert error.strip().splitlines()[-1].startswith("relax: interrupted"), error
    _, alive = psutil.wait_procs(family, timeout=DEADLINE)
    assert not alive
    interrupted = Finished(tmp_path / "interrupted", json.loads((tmp_path / "interrupted/summary.json").read_text()))
    assert interrupted.summary["status"] == "interrupted"
    check_ledger(interrupted)
    checkpoint = CheckpointStore(interrupted.path / "checkpoints", 2).latest()
    assert checkpoint is not None and checkpoint.update == interrupted.summary["updates"]
    assert checkpoint.update >= 4 and checkpoint.update % 2 == 0, "the batch in training is finished"
    updates = checkpoint.update + 8  # more than have rows already
    config, directory = configure("goes-on", f"updates={updates}", **{**run, **SERVE, "updates": None})
    resumed = Started(config, directory, checkpoint).finish()
    check_ledger(resumed)
    assert (resumed.summary["updates"], resumed.summary["pending"]) == (updates, 0)
    assert [line["step"] for line in resumed.metrics()] == list(range(checkpoint.update + 1, updates + 1))

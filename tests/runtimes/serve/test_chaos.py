"""Whatever dies or stands still, the training is that of a run in peace, and only what was lost begins anew."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.config.load import RunConfig
from relax_core.dataflow.ledger import verify
from relax_core.runtimes.local import run_local
from tests.runtimes.conftest import Finished
from tests.runtimes.serve.conftest import BASE, DEADLINE, Start, Started, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

Configure = Callable[..., tuple[RunConfig, RunDirectory]]

FRONTS = ("rollout", "reward", "advantages", "actor")
UPDATES = 120
LEARNS = ("trainer.learning_rate=0.01", f"sampling.stop_token_ids={list(range(128))}", f"updates={UPDATES}")
PATIENCE = ("serve.restarts=20", "serve.restarts_together=100", "serve.rank_timeout=6")


PACED = """
import time

def score(prompt, response, label):
    time.sleep({seconds})
    return float(response[:1].isprintable()) + len(response) / 10
"""


def paced(folder: Path, seconds: float) -> str:
    """An override: a reward that takes its time, so that a run lasts long enough to be hit."""
    path = folder / f"paced_{seconds}.py"
    path.write_text(PACED.format(seconds=seconds))
    return f"reward={{name: python, function: '{path}:score', workers: 1}}"


def check_ledger(finished: Finished) -> dict[str, Any]:
    """Everything is accounted for; the summary."""
    summary = finished.summary
    counts = {name: summary[name] for name in ("issued", "trained", "dropped", "pending")}
    assert verify(finished.lines("ledger.jsonl")) == counts
    return summary


def processes(run: Started) -> dict[str, int]:
    """Of everything that a run consists of, by name."""
    ranks = {name: run.rank(name) for name in ("state", "transport", "engine-0", "actor-0", "actor-1")}
    return ranks | {front: run.front(front) for front in FRONTS}


def hit(run: Started, number: signal.Signals, *names: str) -> None:
    """Ends or stops some processes in the middle of the training, and waits until it goes on."""
    trained = run.trained(run.trained(0) + 4)
    before = processes(run)
    for name in names:
        os.kill(before[name], number)
    run.trained(trained + 12)


def test_whatever_dies_or_stands_still_the_training_is_the_same(
    start: Start, configure: Configure, tmp_path: Path
) -> None:
    run = start("chaos", *LEARNS, *PATIENCE, paced(tmp_path, 0.03))
    for name in ("actor-0", "engine-0", "transport", "state"):
        hit(run, signal.SIGKILL, name)
    hit(run, signal.SIGKILL, *FRONTS)
    for name in ("actor-1", "engine-0", "transport", "state"):
        hit(run, signal.SIGSTOP, name)
    hit(run, signal.SIGSTOP, *FRONTS)
    finished = run.finish()
    config, directory = configure("peace", *LEARNS, paced(tmp_path, 0.0))
    peace = Finished(directory.path, run_local(config, directory))
    for left, right in zip(finished.metrics(), peace.metrics(), strict=True):
        assert left["train/loss"] == pytest.approx(right["train/loss"], rel=1e-5, abs=1e-7)
        assert left["rollout/reward"] == right["rollout/reward"]
    summary = check_ledger(finished)
    assert (summary["trained"], summary["pending"], summary["dropped"]) == (4 * UPDATES, 0, 0)
    restarts = {name.removeprefix("restarts/"): count for name, count in summary["counters"].items()}
    assert all(restarts[name] >= 2 for name in ("actor", "state", "transport", "engine-0", *FRONTS))


def test_what_dies_begins_anew_alone(start: Start, tmp_path: Path) -> None:
    run = start("alone", "updates=30", *PATIENCE, "serve.rank_timeout=30", paced(tmp_path, 0.03))
    run.trained(4)
    before = processes(run)
    os.kill(before["actor-1"], signal.SIGKILL)
    until("the event", lambda: any(event["name"] == "restarted" for event in run.events()))
    after = processes(run)
    assert {name for name in before if before[name] != after[name]} == {"actor-0", "actor-1"}
    run.finish()


@pytest.mark.parametrize("staleness", [1, 2])
def test_no_token_is_older_than_the_bound_whatever_dies(start: Start, staleness: int, tmp_path: Path) -> None:
    mode = ("mode=fully_async", f"max_staleness={staleness}", "updates=40")
    run = start("stale", *mode, *PATIENCE, paced(tmp_path, 0.03))
    for names in (("actor-0",), ("transport",), ("rollout", "engine-0")):
        hit(run, signal.SIGKILL, *names)
    summary = check_ledger(run.finish())
    assert summary["updates"] == 40
    assert summary["trained"] + summary["dropped"] == summary["issued"] - summary["pending"]
    assert summary["max_lag"] <= staleness


HANGS_ONCE = """
import pathlib, time

def score(prompt, response, label):
    try:
        pathlib.Path({path!r}).touch(exist_ok=False)
    except FileExistsError:
        return float(len(response))
    time.sleep(1e6)
"""


def test_a_front_whose_loop_hangs_is_replaced_alone(start: Start, tmp_path: Path) -> None:
    reward = tmp_path / "hangs.py"
    reward.write_text(HANGS_ONCE.format(path=str(tmp_path / "hung")))
    function = f"reward={{name: python, function: '{reward}:score', timeout_seconds: 600}}"
    run = start("hangs", function, "updates=20", "serve.step_timeout=20", "serve.rank_timeout=6")
    until("the reward", lambda: (tmp_path / "hung").exists() or (run.ended and run.finish()))
    before = processes(run)
    run.trained(8)
    after = processes(run)
    assert {name for name in before if before[name] != after[name]} == {"reward"}, run.events()
    events = [line["message"] for line in run.events() if line["name"] == "restarted"]
    assert len(events) == 1 and "a step of reward is" in events[0]
    check_ledger(run.finish())


@contextmanager
def controller(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`relax train` in a process of its own, which is gone in the end."""
    program = str(Path(sys.executable).with_name("relax"))
    command = [program, "train", *options, "--runtime", "serve", "--runs-dir", str(folder)]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def written(folder: Path, model: Path, updates: int) -> str:
    """The file of a run that stores a checkpoint every second update."""
    file = folder / "run.yaml"
    sections = {"updates": updates, "model": {"path": str(model)}, "checkpoint": {"every": 2}}
    file.write_text(yaml.safe_dump({**BASE, **sections}))
    return str(file)


AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""Ray's own, which hold nothing of a run, and look for their node only now and then."""


def left(family: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still run after so long; what nobody has waited for does not."""
    _, alive = psutil.wait_procs(family, timeout=seconds)
    return [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def test_a_dead_controller_leaves_no_process_and_its_run_goes_on(tmp_path: Path, tiny_model_path: Path) -> None:
    file = written(tmp_path, tiny_model_path, 100000)
    with controller(tmp_path, file, "--name", "orphan") as process:
        until("a checkpoint", lambda: list((tmp_path / "orphan" / "checkpoints").glob("update-*")))
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) > 5
        process.kill()
    assert not [process for process in left(family, 60) if process.name() not in AGENTS]
    assert not left(family, 2 * DEADLINE)
    with controller(tmp_path, "--resume", "orphan", "--set", "updates=30") as process:
        output, error = process.communicate(timeout=2 * DEADLINE)
    assert process.returncode == 0, error
    assert json.loads(output)["updates"] >= 30
    check_ledger(Finished(tmp_path / "orphan", json.loads(output)))

"""Whatever dies or stands still, the training is that of a run in peace, and only what was lost begins anew."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.checkpoint.store import Checkpoint, CheckpointStore
from relax_core.config.load import RunConfig
from relax_core.dataflow.ledger import verify
from relax_core.runtimes.local import run_local
from tests.runtimes.conftest import Finished
from tests.runtimes.serve.conftest import BASE, DEADLINE, Start, Started, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

Configure = Callable[..., tuple[RunConfig, RunDirectory]]

FRONTS = ("rollout", "reward", "advantages", "actor")
UPDATES = 40
LEARNS = ("trainer.learning_rate=0.01", f"sampling.stop_token_ids={list(range(128))}", f"updates={UPDATES}")
PATIENCE = ("serve.restarts=20", "serve.restarts_together=100", "serve.rank_timeout=6")

KILL, STOP = signal.SIGKILL, signal.SIGSTOP
MEANS = {"ray": ("transport=ray", "weight_sync=disk"), "shm": ("transport=shm", "weight_sync=shm")}
HITS: dict[str, list[tuple[signal.Signals, tuple[str, ...]]]] = {
    "ray": [
        (KILL, ("transport",)),
        (KILL, ("state", "engine-0")),
        (KILL, FRONTS),
        (STOP, ("engine-0", "actor-1")),
        (STOP, ("transport",)),
    ],
    "shm": [
        (KILL, ("actor-0",)),
        (KILL, ("engine-0",)),
        (KILL, ("transport",)),
        (STOP, ("actor-0",)),
        (STOP, ("transport",)),
        (STOP, ("state",)),
        (STOP, FRONTS),
    ],
}
"""With which means of transport and publication what is hit, and how; :func:`processes` says what each is there."""

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


def server(run: Started) -> int:
    """The server of the transport in shared memory: a child of the controller, which is in this process."""
    children = [child for child in psutil.Process().children() if str(run.path.resolve()) in child.cmdline()]
    return children[0].pid


def processes(run: Started) -> dict[str, int]:
    """Of everything that a run consists of, by name; the weight service and its coordinator are in ``actor-0``."""
    ranks = {name: run.rank(name) for name in ("state", "engine-0", "actor-0", "actor-1")}
    transport = server(run) if run.config.transport.name == "shm" else run.rank("transport")
    return {"transport": transport, **ranks, **{front: run.front(front) for front in FRONTS}}


def hit(run: Started, number: signal.Signals, *names: str) -> None:
    """Ends or stops some processes in the middle of the training, and waits until it goes on."""
    run.trained(run.trained(0) + 2)
    before = processes(run)
    for name in names:
        os.kill(before[name], number)
    # One batch may be trained although somebody is gone, and another be in training.
    run.trained(run.trained(0) + 9)


@pytest.mark.parametrize("means", MEANS)
def test_whatever_dies_or_stands_still_the_training_is_the_same(
    start: Start, configure: Configure, tmp_path: Path, means: str
) -> None:
    run = start(f"chaos-{means}", *LEARNS, *PATIENCE, *MEANS[means], paced(tmp_path, 0.03))
    for number, names in HITS[means]:
        hit(run, number, *names)
    finished = run.finish()
    config, directory = configure("peace", *LEARNS, paced(tmp_path, 0.0))
    peace = Finished(directory.path, run_local(config, directory))
    for left, right in zip(finished.metrics(), peace.metrics(), strict=True):
        assert left["train/loss"] == pytest.approx(right["train/loss"], rel=1e-5, abs=1e-7)
        assert left["rollout/reward"] == right["rollout/reward"]
    summary = check_ledger(finished)
    assert (summary["trained"], summary["pending"], summary["dropped"]) == (4 * UPDATES, 0, 0)
    lost = Counter("actor" if name.startswith("actor-") else name for _, names in HITS[means] for name in names)
    restarts = {name: summary["counters"].get(f"restarts/{name}", 0) for name in lost}
    assert all(restarts[name] >= lost[name] for name in lost), restarts


@pytest.mark.parametrize(
    ("staleness", "means", "hits"),
    [(1, "ray", [("actor-0",), ("rollout", "engine-0")]), (2, "shm", [("transport",), ("actor-1",)])],
)
def test_no_token_is_older_than_the_bound_whatever_dies(
    start: Start, tmp_path: Path, staleness: int, means: str, hits: Sequence[Sequence[str]]
) -> None:
    mode = ("mode=fully_async", f"max_staleness={staleness}", "updates=20")
    run = start(f"stale-{staleness}", *mode, *PATIENCE, *MEANS[means], paced(tmp_path, 0.03))
    for names in hits:
        hit(run, KILL, *names)
    summary = check_ledger(run.finish())
    assert summary["updates"] == 20
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


def test_what_hangs_or_dies_begins_anew_alone(start: Start, tmp_path: Path) -> None:
    reward = tmp_path / "hangs.py"
    reward.write_text(HANGS_ONCE.format(path=str(tmp_path / "hung")))
    function = f"reward={{name: python, function: '{reward}:score', timeout_seconds: 600}}"
    run = start("hangs", function, "updates=10", "serve.step_timeout=20")
    until("the reward", lambda: (tmp_path / "hung").exists() or (run.ended and run.finish()))
    before = processes(run)
    os.kill(before["actor-1"], KILL)
    run.trained(8)
    after = processes(run)
    assert {name for name in before if before[name] != after[name]} == {"actor-0", "actor-1", "reward"}, run.events()
    check_ledger(run.finish())
    restarts = sorted(line["message"] for line in run.events() if line["name"] == "restarted")
    assert [message.partition(" ")[0].strip(",:") for message in restarts] == ["actor", "reward"], restarts
    assert "actor-1" in restarts[0] and "a step of reward is" in restarts[1]


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


def left(family: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still run after so long; what nobody has waited for does not."""
    _, alive = psutil.wait_procs(family, timeout=seconds)
    return [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def test_a_dead_controller_leaves_no_process_and_its_run_goes_on(tmp_path: Path, tiny_model_path: Path) -> None:
    """A run beside it on this host, with a cluster of its own too, ends as if it were alone."""
    file = written(tmp_path, tiny_model_path, 100000)
    with controller(tmp_path, file, "--name", "orphan") as process:
        checkpoint_of(tmp_path / "orphan")
        with controller(tmp_path, file, "--name", "beside", "--set", "updates=40") as beside:
            checkpoint_of(tmp_path / "beside")
            family = psutil.Process(process.pid).children(recursive=True)
            assert len(family) > 5
            process.kill()
            assert beside.poll() is None, "it goes on"
            remains = [each.name() for each in left(family, 60)]
            assert not remains
            assert ended_well(tmp_path / "beside", beside)["trained"] == 4 * 40
    update = checkpoint_of(tmp_path / "orphan") + 4
    with controller(tmp_path, "--resume", "orphan", "--set", f"updates={update}") as process:
        assert ended_well(tmp_path / "orphan", process)["updates"] == update


def checkpoint_of(run: Path) -> int:
    """Waits until there is one; the update of the newest."""
    store = CheckpointStore(run / "checkpoints", 2)
    found: Checkpoint = until("a checkpoint", store.latest, 2 * DEADLINE)
    return found.update


def ended_well(run: Path, process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Waits for the end of a run; the summary."""
    output, error = process.communicate(timeout=2 * DEADLINE)
    assert process.returncode == 0, error
    return check_ledger(Finished(run, json.loads(output)))

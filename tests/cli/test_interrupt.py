"""Ctrl-C and SIGTERM at every part of a run: it ends with a checkpoint of that moment, from which it goes on."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from relax_core.checkpoint.store import Checkpoint, CheckpointStore
from relax_core.dataflow.ledger import verify
from tests.cli.conftest import DEADLINE, Relax, Started, lines, write_reward

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

RUN = Path("runs/stopped")
CONFIG = """
model: {path: model}
dataset: {name: generated, task: sort_digits, digits: 2, split: train, heldout: 10}
reward: {name: python, function: "my.py:score", workers: 1}
batch: {tasks: 4, samples_per_task: 4}
trainer: {learning_rate: 1.0e-3}
sinks: [jsonl]
"""

HANGING = (
    "import os, time\n"
    "    while os.path.exists('block') and os.path.isdir('runs/stopped/batches'):\n"
    "        open('hangs', 'w').close(); time.sleep(0.05)\n"
    "    return 1.0"
)

Process = subprocess.Popen[str]
Moment = tuple[int, tuple[str, ...], Callable[[], object]]
"""Updates and other settings of a run, and whether it is where it is to be interrupted."""


def set_to(*settings: str) -> tuple[str, ...]:
    return tuple(word for setting in settings for word in ("--set", setting))


def generates() -> bool:
    """A second batch of long answers has begun."""
    events = lines(RUN / "ledger.jsonl")
    return any(event["event"] == "trained" for event in events) and events[-1]["event"] == "issued"


def trains() -> bool:
    """The first of six updates of the second batch is done."""
    return 7 in steps("train")


def steps(stream: str) -> list[object]:
    return [line["step"] for line in lines(RUN / "metrics.jsonl") if line["stream"] == stream]


MOMENTS: dict[str, Moment] = {
    "generating": (3, set_to("sampling.max_new_tokens=200", "engine.max_batch_rows=4"), generates),
    "training": (
        18,
        set_to("batch.epochs_per_batch=6", "batch.tokens_per_micro_batch=8", "sampling.max_new_tokens=6"),
        trains,
    ),
    "evaluating": (
        3,
        set_to(
            "eval={every: 2, dataset: {name: generated, task: sort_digits, digits: 2, split: heldout, heldout: 10}, "
            'reward: {name: python, function: "hang.py:score", workers: 1}, sampling: {max_new_tokens: 3}}',
            "sampling.max_new_tokens=3",
        ),
        lambda: Path("hangs").exists(),
    ),
}


def wait_for(condition: Callable[[], object], process: Process) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, "the process did not get there"
        time.sleep(0.02)


def begun(started: Started, moment: str, *settings: str) -> Process:
    """A run that is at that moment."""
    Path("run.yaml").write_text(CONFIG)
    write_reward("return float(len(response) + sum(map(ord, response)) % 7)", "my.py")
    write_reward(HANGING, "hang.py")
    Path("block").touch()
    updates, of_moment, there = MOMENTS[moment]
    process = started("train", "run.yaml", "--name", "stopped", *of_moment, *set_to(f"updates={updates}", *settings))
    wait_for(there, process)
    return process


def end(process: Process, number: signal.Signals) -> str:
    """Ends a run as a terminal does, or as ``kill``; returns what it said. Nothing that it started may be left."""
    children = psutil.Process(process.pid).children(recursive=True)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    out, err = process.communicate(timeout=DEADLINE)
    assert out == ""
    assert "Traceback" not in err
    assert not psutil.wait_procs(children, timeout=DEADLINE)[1], "a process outlived the run"
    return err


def assert_interrupted(process: Process, number: signal.Signals) -> None:
    err = end(process, number)
    assert process.returncode == 130, err
    assert err.rstrip("\n").splitlines()[-1] == "relax: interrupted; go on with: relax train --resume stopped"


def counts(state: dict[str, int]) -> dict[str, int]:
    return {name: state[name] for name in ("issued", "trained", "dropped", "pending")}


def checkpoint_of_the_moment() -> Checkpoint:
    """The newest checkpoint, which must be of exactly where ledger and summary say that the run ended."""
    summary = json.loads((RUN / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    checkpoint = CheckpointStore(RUN / "checkpoints", 2).latest()
    assert checkpoint is not None
    assert checkpoint.update == summary["updates"]
    ledger = checkpoint.state["stage"]["ledger"]
    assert verify(lines(RUN / "ledger.jsonl")) == counts(summary)
    assert (ledger["issued"], len(ledger["pending"])) == (summary["issued"], summary["pending"])
    return checkpoint


@pytest.mark.parametrize(
    ("moment", "mode", "number"),
    [
        ("generating", "colocate", signal.SIGINT),
        ("generating", "fully_async", signal.SIGTERM),
        ("training", "colocate", signal.SIGTERM),
        ("training", "fully_async", signal.SIGINT),
        ("evaluating", "colocate", signal.SIGINT),
        ("evaluating", "fully_async", signal.SIGINT),
    ],
)
def test_an_interrupted_run_goes_on_from_that_moment(
    started: Started, relax: Relax, moment: str, mode: str, number: signal.Signals
) -> None:
    assert_interrupted(begun(started, moment, f"mode={mode}"), number)
    checkpoint = checkpoint_of_the_moment()
    if moment == "generating":
        assert "issued" in {stage for _, stage in checkpoint.state["stage"]["ledger"]["pending"]}
    if moment == "training":
        assert checkpoint.update == 12, "the batch in training is finished"
    if moment == "evaluating":
        assert checkpoint.update == 2

    Path("block").unlink()
    resumed = relax("train", "--resume", "stopped")
    assert resumed.code == 0, resumed.err
    summary = json.loads(resumed.out)
    updates = MOMENTS[moment][0]
    assert (summary["status"], summary["updates"], summary["pending"]) == ("completed", updates, 0)
    assert verify(lines(RUN / "ledger.jsonl")) == counts(summary)
    assert steps("train") == list(range(1, updates + 1))
    if moment == "evaluating":
        assert steps("eval") == [0, 2, 3], "the evaluation that was interrupted is made again"


def test_an_interrupt_in_the_last_evaluation_keeps_what_was_trained(started: Started, relax: Relax) -> None:
    assert_interrupted(begun(started, "evaluating", "updates=1"), signal.SIGINT)
    assert checkpoint_of_the_moment().update == 1
    Path("block").unlink()
    assert relax("train", "--resume", "stopped").code == 0
    assert (steps("train"), steps("eval")) == ([1], [0, 1])


def catches(process: Process, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def test_a_second_ctrl_c_ends_a_run_at_once_in_the_middle_of_a_batch(started: Started) -> None:
    process = begun(started, "training", "updates=6000", "batch.epochs_per_batch=3000")
    process.send_signal(signal.SIGINT)
    wait_for(lambda: not catches(process, signal.SIGINT), process)
    end(process, signal.SIGINT)
    assert process.returncode == -signal.SIGINT
    assert not (RUN / "checkpoints").exists()

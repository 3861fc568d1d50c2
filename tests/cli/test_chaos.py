"""A fully asynchronous run with slow, stopped, dropped and surplus groups under way is killed again and again."""

import json
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from relax_core.dataflow.ledger import verify
from tests.cli.conftest import DEADLINE, Started, lines, write_reward

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KILLS = 10
TASKS = 90

CONFIG = """
mode: fully_async
max_staleness: 1
epochs: 1
model: {path: model}
dataset: {name: generated, task: sort_digits, digits: 2, split: train, heldout: 10}
reward: {name: python, function: "my.py:score"}
batch: {tasks: 3, samples_per_task: 2}
rollout: {surplus: 2, drop_equal_rewards: true}
sampling: {max_new_tokens: 48}
engine: {max_batch_rows: 3}
trainer: {learning_rate: 1.0e-3}
checkpoint: {every: 1}
sinks: [jsonl]
"""

REWARD = (
    "import time\n"
    "    time.sleep(0.05 * (len(response) % 3))\n"
    "    return float(sum(map(ord, prompt)) % 5 and sum(map(ord, response)) % 7)"
)


def test_every_task_of_the_epoch_is_trained_once_or_reported(folder: Path, started: Started) -> None:
    Path("run.yaml").write_text(CONFIG)
    write_reward(REWARD, "my.py")
    run = Path("runs/chaos")
    moments = random.Random(0)
    kills = 0
    process = started("train", "run.yaml", "--name", "chaos")
    while kills < KILLS:
        begun = len(lines(run / "timeline.jsonl"))
        wait(process, lambda begun=begun: len(lines(run / "timeline.jsonl")) > begun + 8)
        time.sleep(moments.uniform(0.0, 0.5))
        if process.poll() is not None:
            break
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait(DEADLINE)
        kills += 1
        assert not psutil.wait_procs(children, timeout=DEADLINE)[1], "engine or reward workers outlived their run"
        process = started("train", "--resume", "chaos")
    process.wait(300)
    assert process.returncode == 0, process.communicate()[1]
    assert kills == KILLS, "the run was over too soon"
    summary = json.loads((run / "summary.json").read_text())
    events = lines(run / "ledger.jsonl")
    counts = {key: summary[key] for key in ("issued", "trained", "dropped", "pending")}
    assert verify(events) == counts
    assert counts["issued"] == TASKS and counts["pending"] == 0
    assert counts["trained"] + counts["dropped"] == TASKS
    assert set(summary["dropped_reasons"]) <= {"equal_rewards", "stale"}
    assert summary["dropped_reasons"]["equal_rewards"] > 0 and counts["trained"] > 0
    assert summary["max_lag"] <= 1
    fates = final_fates(events)
    assert len(fates) == TASKS == len({task for task, _ in fates.values()})
    assert {fate for _, fate in fates.values()} <= {"trained", "dropped"}
    updates = [line["step"] for line in lines(run / "metrics.jsonl") if line["stream"] == "train"]
    assert sorted(set(updates)) == list(range(1, summary["updates"] + 1)), "the count of updates goes on"
    assert sum(event["event"] == "restored" for event in events) == KILLS


def final_fates(events: list[dict[str, Any]]) -> dict[int, tuple[int, str]]:
    """By group its task and what became of it in the end; what a restore made void is forgotten."""
    tasks: dict[int, int] = {}
    fates: dict[int, str] = {}
    for event in events:
        if event["event"] == "restored":
            beyond, below = set(event["state"]["settled_beyond"]), event["state"]["settled_below"]
            fates = {group: fate for group, fate in fates.items() if group < below or group in beyond}
        elif event["event"] == "issued":
            tasks[event["group"]] = event["task"]
        elif event["event"] in ("trained", "dropped"):
            assert event["group"] not in fates, "a group is trained or dropped twice"
            fates[event["group"]] = event["event"]
    return {group: (tasks[group], fate) for group, fate in fates.items()}


def wait(process: "subprocess.Popen[str]", condition: Any) -> None:
    """Until something has happened, or the process has ended."""
    end = time.monotonic() + DEADLINE
    while process.poll() is None and not condition():
        assert time.monotonic() < end, "the process did not get there"
        time.sleep(0.02)
    if process.poll() not in (None, 0, -signal.SIGKILL):
        raise AssertionError(process.communicate()[1])

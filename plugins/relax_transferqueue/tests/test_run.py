"""A run whose rows travel through a TransferQueue of its own, and what happens when that loses processes."""

import gc
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from relax_core.api.errors import DeadlineExceeded
from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.config.load import load_run
from relax_core.dataflow.ledger import verify
from relax_core.testing.transport.fixtures import ACTOR, COLUMNS, REWARDER, add_group, groups_of, taken
from relax_core.transports.ray.calls import ActorLost, call, find_actor

pytest.importorskip("transfer_queue")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

CALL_SECONDS = 5.0
RUN: dict[str, Any] = {
    "updates": 2,
    "dataset": {"name": "generated", "task": "sort_digits", "digits": 2, "split": "train", "heldout": 10},
    "reward": {"name": "format", "pattern": "(?s)[ -~].*"},
    "batch": {"tasks": 4, "samples_per_task": 4, "tokens_per_micro_batch": 64},
    "sampling": {"max_new_tokens": 3},
    "transport": {"name": "transferqueue", "units": 1},
    "weight_sync": "disk",
}


def test_a_run_trains_every_row(tmp_path: Path, tiny_model_path: Path) -> None:
    from relax_core.runtimes.serve.run import run_serve

    sections = {**RUN, "runs_dir": str(tmp_path), "model": {"path": str(tiny_model_path)}}
    config = load_run(None, ["name=transferqueue-run"], sections)
    directory = RunDirectory.create(config.run.runs_dir, "transferqueue-run", config.resolved(), config.run.seed)
    summary = run_serve(config, directory)
    counts = {name: summary[name] for name in ("issued", "trained", "dropped", "pending")}
    assert counts["trained"] == 8
    assert verify(json.loads(line) for line in (directory.path / "ledger.jsonl").read_text().splitlines()) == counts
    gc.collect()
    with pytest.raises(ActorLost):
        find_actor("TransferQueueController", "transferqueue-run")


def test_without_its_processes_calls_end_by_their_deadline(ends: Any) -> None:
    transport = ends.make(units=2)
    transport.open(COLUMNS, (REWARDER, ACTOR))
    for group in range(4):
        add_group(transport, group)
    impatient = ends.make(ends.run_id(transport), call_seconds=CALL_SECONDS)
    lease = taken(impatient.take("rewarder", 4, 4))
    assert groups_of(lease) == [0, 1, 2, 3]
    _kill(ends.run_id(transport), "TransferQueueStorageUnit0")
    with pytest.raises(DeadlineExceeded, match="a storage unit gave no answer"):
        impatient.fetch(lease, ["tokens"])
    _kill(ends.run_id(transport), "TransferQueueController")
    for use in (lambda: impatient.fetch(lease, ["tokens"]), lambda: add_group(impatient, 9)):
        with pytest.raises(DeadlineExceeded, match="its controller"):
            use()
    impatient.nack(lease)
    assert impatient.depth()["ready/rewarder"] == 4, "who may have what is not lost with the rows"


def _kill(run_id: str, name: str) -> None:
    process = call(find_actor(name, run_id), "__ray_call__", _process)
    os.kill(process, signal.SIGKILL)


def _process(_: object) -> int:
    return os.getpid()

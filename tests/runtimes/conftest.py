"""A tiny run through the real local runtime, as the command line starts it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from relax_core.checkpoint.batches import BATCHES, BatchRecord, BatchStore
from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.checkpoint.store import CheckpointStore
from relax_core.config.load import load_run
from relax_core.runtimes.local import run_local


@dataclass(frozen=True)
class Finished:
    """What a run left behind."""

    path: Path
    summary: Mapping[str, Any]

    def lines(self, name: str) -> list[dict[str, Any]]:
        """A file of JSON lines in the run's folder."""
        return [json.loads(line) for line in (self.path / name).read_text().splitlines()]

    def metrics(self, stream: str = "train") -> list[dict[str, Any]]:
        """Metrics of one stream, in order."""
        return [line for line in self.lines("metrics.jsonl") if line["stream"] == stream]

    def batches(self) -> list[BatchRecord]:
        """The stored batches, in order."""
        store = BatchStore(self.path / BATCHES, keep=1)
        return [store.load(number) for number in store.numbers()]


def resume(run: Path, *overrides: str) -> Finished:
    """Continues a run from its newest whole checkpoint, as the command line does."""
    config = load_run(run / "config.yaml", [f"runs_dir={run.parent}", f"name={run.name}", *overrides])
    directory = RunDirectory.create(run.parent, run.name, config.resolved(), config.run.seed, resume=True)
    return Finished(run, run_local(config, directory, CheckpointStore(directory.checkpoints, 2).latest()))


Run = Callable[..., Finished]


@pytest.fixture
def run(tmp_path: Path, tiny_model_path: Path) -> Run:
    """``run(name, *overrides)``: trains the tiny model in small batches to begin with a printable byte."""
    base = {
        "updates": 4,
        "runs_dir": str(tmp_path / "runs"),
        "model": {"path": str(tiny_model_path)},
        "dataset": {"name": "generated", "task": "sort_digits", "digits": 2, "split": "train", "heldout": 10},
        "reward": {"name": "format", "pattern": "(?s)[ -~].*"},
        "batch": {"tasks": 4, "samples_per_task": 4, "tokens_per_micro_batch": 64},
        "sampling": {"max_new_tokens": 3},
        "trainer": {"learning_rate": 1e-3},
        "sinks": [{"name": "jsonl"}],
    }

    def start(name: str, *overrides: str) -> Finished:
        config = load_run(None, [f"name={name}", *overrides], base)
        directory = RunDirectory.create(config.run.runs_dir, name, config.resolved(), config.run.seed)
        return Finished(directory.path, run_local(config, directory))

    return start

"""Tiny runs on Ray Serve, on the one cluster of the test session."""

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from relax_core.api.context import ModelSource
from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.checkpoint.store import Checkpoint
from relax_core.config.load import RunConfig, load_run
from relax_core.models.prompts import PromptCodec
from tests.runtimes.conftest import Finished

DEADLINE = 240.0
"""Seconds that a test waits for something which takes a few."""

BASE: dict[str, Any] = {
    "updates": 4,
    "dataset": {"name": "generated", "task": "sort_digits", "digits": 2, "split": "train", "heldout": 10},
    "reward": {"name": "format", "pattern": "(?s)[ -~].*"},
    "batch": {"tasks": 4, "samples_per_task": 4, "tokens_per_micro_batch": 64},
    "sampling": {"max_new_tokens": 3},
    "trainer": {"learning_rate": 1e-3},
    "sinks": [{"name": "jsonl"}],
}
SERVE = {"transport": "ray", "weight_sync": "disk"}


def until(
    what: str, condition: Callable[[], Any], seconds: float = DEADLINE, told: Callable[[], object] = lambda: ""
) -> Any:
    """The first true value of the condition; ``told`` says why there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {seconds:g} s {told()}")


class Started:
    """A run that goes on in a thread, with its processes in reach."""

    def __init__(self, config: RunConfig, directory: RunDirectory, checkpoint: Checkpoint | None = None) -> None:
        self.config, self.name, self.path = config, directory.run_id, directory.path
        self._checkpoint = checkpoint
        self._directory = directory
        self._summary: Future[Any] = Future()
        Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        from relax_core.runtimes.serve.run import run_serve

        try:
            self._summary.set_result(run_serve(self.config, self._directory, self._checkpoint))
        except BaseException as error:
            self._summary.set_exception(error)

    def finish(self) -> Finished:
        """Waits for the end; raises what the run raised."""
        return Finished(self.path, self._summary.result(2 * DEADLINE))

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._summary.done()

    def trained(self, count: int) -> int:
        """Waits until so many groups are trained; the number there are now."""

        def now() -> int:
            if self.ended:
                self.finish()
            ledger = self.path / "ledger.jsonl"
            trained = ledger.read_text().count('"event": "trained"') if ledger.exists() else 0
            return trained if trained >= count else 0

        number: int = until(f"{count} trained groups", now)
        return number

    def events(self) -> list[dict[str, Any]]:
        """What the sinks were told so far."""
        return [json.loads(line) for line in (self.path / "events.jsonl").read_text().splitlines()]

    def actor(self, name: str) -> Any:
        """The actor of that name; of a rank, in its newest life."""
        from ray.util import list_named_actors

        from relax_core.runtimes.serve.assignment import process_name
        from relax_core.transports.ray.calls import find_actor

        there = {each["name"] for each in list_named_actors(all_namespaces=True) if each["namespace"] == self.name}
        lives = [life for life in range(1, 100) if process_name(name, life) in there]
        return find_actor(process_name(name, lives[-1]) if lives else name, self.name)

    def rank(self, name: str) -> int:
        """Process of an actor."""
        import ray

        return int(ray.get(self.actor(name).__ray_call__.remote(lambda self: os.getpid()), timeout=DEADLINE))

    def front(self, name: str) -> int:
        """Process of a front."""
        from ray import serve

        return int(serve.get_app_handle(f"{self.name}-{name}").status.remote().result(timeout_s=DEADLINE)["pid"])


Start = Callable[..., Started]


@pytest.fixture(scope="module")
def codec(tiny_model_path: Path) -> PromptCodec:
    return PromptCodec(ModelSource(tiny_model_path))


@pytest.fixture
def configure(tmp_path: Path, tiny_model_path: Path) -> Callable[..., tuple[RunConfig, RunDirectory]]:
    """``configure(name, *overrides, **sections)``: a tiny run and its folder."""

    def make(name: str, *overrides: str, **sections: Any) -> tuple[RunConfig, RunDirectory]:
        base = {**BASE, "runs_dir": str(tmp_path / "runs"), "model": {"path": str(tiny_model_path)}, **sections}
        config = load_run(None, [f"name={name}", *overrides], base)
        return config, RunDirectory.create(config.run.runs_dir, name, config.resolved(), config.run.seed)

    return make


@pytest.fixture
def start(ray_cluster: None, configure: Callable[..., tuple[RunConfig, RunDirectory]]) -> Start:
    """``start(name, *overrides)``: a tiny run on Ray Serve, in a thread."""
    return lambda name, *overrides: Started(*configure(name, *overrides, **SERVE))

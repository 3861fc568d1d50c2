"""What goes wrong while a run is under way ends it in time with the cause, or is counted; nothing is left behind."""

import errno
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from install_plugins import importable, install_source

from relax_core.api.errors import RelaxError, RewardError, TrainingError
from relax_core.checkpoint.store import CheckpointStore
from relax_core.dataflow.ledger import verify
from relax_core.datasets.generated import GeneratedDataset
from relax_core.registry import registry
from relax_core.sinks.jsonl import JsonlSink
from relax_core.trainers.torch.trainer import TorchTrainer
from tests.cli.conftest import children
from tests.runtimes.conftest import Finished, Run, resume

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

MODES = ("colocate", "fully_async")
modes = pytest.mark.parametrize("mode", MODES)

RAISING_ENGINE = """
from relax_core import Component, hookimpl
from relax_core.engines.torch.engine import TorchEngine

class Raising(TorchEngine):
    async def generate(self, request):
        if request.key == "9/0":
            raise ZeroDivisionError("by zero, in the tenth group")
        return await super().generate(request)

@hookimpl
def relax_engines():
    config = "relax_core.engines.torch.config:TorchEngineConfig"
    return [Component("raising", f"{__name__}:Raising", config, "Raises.")]
"""


def threads() -> set[int | None]:
    """Those for which the end of the process waits."""
    return {thread.ident for thread in threading.enumerate() if not thread.daemon}


def ports() -> set[Any]:
    return {each.laddr for each in psutil.Process().net_connections() if each.status == psutil.CONN_LISTEN}


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No process, port or thread outlives a run, however it ends."""
    before = children(), threads(), ports()
    yield
    assert children() <= before[0], "a process was left behind"
    assert threads() <= before[1], "a thread was left behind"
    assert ports() <= before[2], "a port was left open"


def failure(folder: Path) -> str:
    """What the run in the folder has told of its end."""
    return Finished(folder, {}).lines("events.jsonl")[-1]["message"]


def assert_resumable(folder: Path, *overrides: str) -> None:
    """A failed run goes on from its last checkpoint, and in the end every task is accounted for."""
    finished = resume(folder, *overrides)
    summary = finished.summary
    assert (summary["updates"], summary["trained"], summary["pending"]) == (4, 16, 0)
    counts = {name: summary[name] for name in ("issued", "trained", "dropped", "pending")}
    assert verify(finished.lines("ledger.jsonl")) == counts


def at_checkpoint(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], Any]) -> None:
    """Does something just before the run's checkpoint of that number is written."""
    write, written = CheckpointStore.write, []

    def watched(self: CheckpointStore, *arguments: Any) -> Path:
        written.append(arguments[0])
        if len(written) == number:
            act()
        return write(self, *arguments)

    monkeypatch.setattr(CheckpointStore, "write", watched)


def reward(folder: Path, body: str) -> str:
    (folder / "my.py").write_text(f"import os\ndef score(prompt, response):\n    return {body}\n")
    return f"reward={{name: python, function: '{folder}/my.py:score', workers: 1}}"


def test_a_killed_engine_process(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill() -> None:
        (engine,) = [each for each in psutil.Process().children() if "engines.process.child" in str(each.cmdline())]
        engine.kill()

    with monkeypatch.context() as patch, pytest.raises(RelaxError, match=r"was ended by signal 9 \(Killed\)") as ended:
        at_checkpoint(patch, 2, kill)
        run("killed", "mode=fully_async", "max_staleness=1", "checkpoint={every: 1, keep: 9}", "updates=40")
    assert ended.value.exit_code == 1
    assert failure(tmp_path / "runs/killed") == str(ended.value)
    assert_resumable(tmp_path / "runs/killed", "updates=4")


@pytest.fixture
def raising_engine(tmp_path: Path) -> Iterator[None]:
    with importable(tmp_path / "site"):
        registry.cache_clear()
        install_source("relax-raising", RAISING_ENGINE, tmp_path / "site")
        yield
    registry.cache_clear()


@modes
@pytest.mark.usefixtures("raising_engine")
def test_an_engine_that_raises(run: Run, tmp_path: Path, mode: str) -> None:
    with pytest.raises((RelaxError, ZeroDivisionError), match="by zero, in the tenth group"):
        run("raising", f"mode={mode}", "engine.name=raising")
    assert "raised ZeroDivisionError: by zero, in the tenth group" in failure(tmp_path / "runs/raising")


@modes
def test_an_engine_whose_numbers_are_not_finite(run: Run, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    apply = TorchTrainer.apply

    def spoilt(self: TorchTrainer, denominator: float) -> Any:
        metrics = apply(self, denominator)
        if self.optimizer.updates == 2:
            torch.nn.init.constant_(next(self.policy.model.parameters()), float("nan"))
        return metrics

    monkeypatch.setattr(TorchTrainer, "apply", spoilt)
    with pytest.raises(RelaxError, match=r"the logits of token 0 are not finite .*version 2") as ended:
        run("spoilt", f"mode={mode}", "probe.every=0")
    assert ended.value.exit_code == 1


@modes
def test_a_dataset_that_raises(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    get, asked = GeneratedDataset.__getitem__, []

    def raising(self: GeneratedDataset, index: int) -> Any:
        asked.append(index)
        if len(asked) > 10:
            raise ConnectionError("the other side is gone")
        return get(self, index)

    with monkeypatch.context() as patch, pytest.raises(RelaxError) as ended:
        patch.setattr(GeneratedDataset, "__getitem__", raising)
        run("gone", f"mode={mode}", "checkpoint.every=1")
    cause = f"dataset: task {asked[-1]} raised ConnectionError: the other side is gone"
    assert str(ended.value).startswith(cause)
    assert failure(tmp_path / "runs/gone") == str(ended.value)
    assert_resumable(tmp_path / "runs/gone")


def test_a_reward_that_ends_its_process(run: Run, tmp_path: Path) -> None:
    dying = reward(tmp_path, "os._exit(3) if prompt[0] in '12' else float(len(response))")
    with pytest.raises(RewardError, match="ended its process with exit code 3") as ended:
        run("dying", "mode=fully_async", "updates=40", dying)
    assert ended.value.exit_code == 1
    dropped = run("dropped", "mode=fully_async", dying, "reward.on_error=drop").summary
    assert dropped["dropped_reasons"] == {"reward_error": dropped["dropped"]}
    assert dropped["trained"] == 16
    assert dropped["counters"]["reward/worker_died"] >= dropped["dropped"] > 0


def test_a_sink_that_blocks_for_ever(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(JsonlSink, "write", lambda self, *arguments: free.wait())
        finished = run("blocking", "mode=fully_async", "max_staleness=1")
    free.set()
    assert (finished.summary["status"], finished.summary["updates"]) == ("completed", 4)
    assert finished.summary["counters"]["sink/dropped"] >= 4


@contextmanager
def full_disk(free: int) -> Iterator[Callable[[], None]]:
    """What it yields makes every write beyond so many bytes of a file fail, until the block ends."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (free, before[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@modes
def test_a_full_disk_at_a_checkpoint(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    folder = tmp_path / "runs/full"
    with monkeypatch.context() as patch, full_disk(2**16) as fill, pytest.raises(RelaxError) as ended:
        at_checkpoint(patch, 2, fill)
        run("full", f"mode={mode}", "checkpoint.every=1")
    assert ended.value.exit_code == 1
    assert f"checkpoint {folder}/checkpoints/update-000002 could not be written" in str(ended.value)
    assert os.strerror(errno.EFBIG) in str(ended.value)
    assert "\n" not in str(ended.value)
    assert failure(folder) == str(ended.value)
    assert os.listdir(folder / "checkpoints") == ["update-000001"]
    assert_resumable(folder)


@modes
def test_gradients_that_are_not_finite(run: Run, mode: str) -> None:
    cause = r"2 updates in a row were not finite; in the last one the (loss|gradient)"
    with pytest.raises(TrainingError, match=cause) as ended:
        run("infinite", f"mode={mode}", "algorithm.entropy_coefficient=1.0e+38", "trainer.max_skipped_in_row=2")
    assert ended.value.exit_code == 1

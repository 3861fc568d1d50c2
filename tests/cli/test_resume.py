"""Runs that are killed, interrupted and continued, and plugins of others: each in a process of its own."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from install_plugins import algorithm, importable, install_source

from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.config.document import read_document
from relax_core.dataflow.ledger import verify
from relax_core.registry import registry
from tests.cli.conftest import DEADLINE, Relax, Started, lines, write_reward

CONFIG = """
updates: 4
model: {path: model}
dataset: {name: generated, task: sort_digits, digits: 2, split: train, heldout: 10}
reward: {name: python, function: "my.py:score"}
batch: {tasks: 4, samples_per_task: 4}
sampling: {max_new_tokens: 3}
trainer: {learning_rate: 1.0e-3}
checkpoint: {every: 2}
sinks: [console, jsonl]
"""

RAISING_SINK = """
from relax_core import Component, hookimpl
from relax_core.api.sink import Sink

class Raising(Sink):
    def __init__(self, config, context): ...
    def start(self, run): ...
    def write(self, stream, step, metrics):
        raise OSError("the other side is gone")
    def text(self, stream, step, name, value): ...
    def event(self, name, message): ...
    def close(self): ...

@hookimpl
def relax_sinks():
    return [Component("raising", f"{__name__}:Raising", "relax_core.sinks.config:JsonlSinkConfig", "Raises.")]
"""


def updates(run: Path) -> dict[int, dict[str, object]]:
    """What the updates measured, apart from time."""
    return {
        int(str(line["step"])): {key: value for key, value in line.items() if key.startswith(("train/", "rollout/"))}
        for line in lines(run / "metrics.jsonl")
        if line["stream"] == "train"
    }


def wait_for(condition: Callable[[], object], process: "subprocess.Popen[str]") -> None:
    """Waits for something a running process does."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, "the process did not get there"
        time.sleep(0.02)


@pytest.fixture
def blocked(folder: Path, started: Started) -> "subprocess.Popen[str]":
    """The run ``stopped`` with a checkpoint of update 2; its next reward hangs while there is a file ``block``."""
    Path("run.yaml").write_text(CONFIG)
    body = (
        "import os, time\n"
        "    while os.path.exists('block') and os.path.isdir('runs/stopped/checkpoints/update-000002'):\n"
        "        open('hangs', 'w').close(); time.sleep(0.05)\n"
        "    return float(len(response) + sum(map(ord, response)) % 7)"
    )
    write_reward(body, "my.py")
    Path("block").touch()
    process = started("train", "run.yaml", "--name", "stopped")
    wait_for(lambda: Path("hangs").exists(), process)
    return process


def test_a_killed_run_is_continued_exactly(blocked: "subprocess.Popen[str]", relax: Relax) -> None:
    run = Path("runs/stopped")
    workers = psutil.Process(blocked.pid).children(recursive=True)
    assert len(workers) >= 2
    blocked.kill()
    blocked.wait(DEADLINE)
    assert not psutil.wait_procs(workers, timeout=DEADLINE)[1], "reward workers outlived their run"
    assert not (run / "summary.json").exists()

    Path("block").unlink()
    assert relax("train", "run.yaml", "--name", "whole").code == 0
    ended = relax("train", "--resume", "stopped")
    assert ended.code == 0, ended.err
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["updates"], summary["issued"], summary["trained"]) == ("completed", 4, 16, 16)
    counts = {key: summary[key] for key in ("issued", "trained", "dropped", "pending")}
    assert verify(lines(run / "ledger.jsonl")) == counts
    resumed, whole = updates(run), updates(Path("runs/whole"))
    assert sorted(whole) == [1, 2, 3, 4]
    versions = [measured.pop("train/version") for measured in resumed.values()]
    assert versions == [0, 1, 3, 4], "restored weights are published as a version of their own"
    for measured in whole.values():
        del measured["train/version"]
    assert resumed == whole
    assert all(measured["train/grad_norm"] for measured in whole.values())
    assert [line["step"] for line in lines(run / "samples.jsonl") if line["stream"] == "rollout"] == [4, 8, 12, 16]


def test_ctrl_c_is_one_line_and_leaves_no_process(blocked: "subprocess.Popen[str]") -> None:
    workers = psutil.Process(blocked.pid).children(recursive=True)
    os.killpg(blocked.pid, signal.SIGINT)  # as a terminal does: to everybody in the foreground
    out, err = blocked.communicate(timeout=DEADLINE)
    assert (blocked.returncode, out) == (130, "")
    last = err.rstrip("\n").splitlines()[-1]
    assert last == "relax: interrupted; go on with: relax train --resume stopped"
    assert "Traceback" not in err
    assert not psutil.wait_procs(workers, timeout=DEADLINE)[1], "a reward worker outlived the run"
    assert json.loads(Path("runs/stopped/summary.json").read_text())["status"] == "interrupted"
    assert verify(lines(Path("runs/stopped/ledger.jsonl")))["pending"] == 4


def test_only_a_run_with_a_checkpoint_can_be_resumed(relax: Relax) -> None:
    Path("run.yaml").write_text(CONFIG)
    assert relax("train", "run.yaml", "--name", "mine").code == 0
    unknown = relax("train", "--resume", "mien")
    assert (unknown.code, unknown.out) == (2, "")
    assert "there is no run 'runs/mien'; did you mean 'mine'?" in unknown.message
    shutil.rmtree("runs/mine/checkpoints")
    before = sorted(Path("runs/mine").rglob("*"))
    empty = relax("train", "--resume", "mine")
    assert (empty.code, empty.out) == (2, "")
    assert empty.message == "relax: --resume: run 'runs/mine' has no complete checkpoint to continue from"
    assert sorted(Path("runs/mine").rglob("*")) == before


def test_a_run_that_has_no_checkpoint_yet_begins_anew(started: Started, relax: Relax) -> None:
    Path("run.yaml").write_text(CONFIG.replace("every: 2", "every: 0"))
    write_reward(
        "import os, time\n    while os.path.exists('block'): time.sleep(0.05)\n    return len(response)", "my.py"
    )
    Path("block").touch()
    process = started("train", "run.yaml", "--name", "early")
    wait_for(lambda: lines(Path("runs/early/ledger.jsonl")), process)
    process.kill()
    process.wait(DEADLINE)
    Path("block").unlink()
    ended = relax("train", "--resume", "early")
    assert ended.code == 0, ended.err
    assert "has no checkpoint yet: it begins anew" in ended.err
    assert verify(lines(Path("runs/early/ledger.jsonl")))["trained"] == 16


def content(run: Path) -> dict[Path, bytes]:
    """Every file of a run."""
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


SERVE = ("--runtime", "serve", "--set", "transport=shm", "--set", "weight_sync=shm")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "device=nonsense"), "device: 'nonsense' cannot be used here"),
        (("--set", "device=nonsense", *SERVE), "device: 'nonsense' cannot be used here"),
        (("--set", "dataset.path=other.jsonl"), "dataset: its content changed since the checkpoint"),
        (("--set", "dataset.path=other.jsonl", *SERVE), "dataset: its content changed since the checkpoint"),
        (("--set", "batch.tasks=17"), "dataset: has 16 tasks, fewer than the 17 of one batch"),
    ],
)
def test_a_refused_resume_changes_nothing(train: Relax, relax: Relax, options: Sequence[str], message: str) -> None:
    assert train("--name", "mine", "--set", "batch.tasks=8").code == 0
    Path("other.jsonl").write_text(Path("my.jsonl").read_text().replace("+1=", "+2="))
    before = content(Path("runs/mine"))
    refused = relax("train", "--resume", "mine", "--set", "epochs=3", *options)
    assert (refused.code, refused.out) == (2, "")
    assert message in refused.message
    assert content(Path("runs/mine")) == before


def test_a_resume_that_is_refused_while_it_starts_leaves_the_configuration(train: Relax, relax: Relax) -> None:
    assert train("--name", "mine").code == 0
    before = Path("runs/mine/config.yaml").read_text()
    service = ("--set", "publication.service=true", "--set", "publication.host=192.0.2.1")
    refused = relax("train", "--resume", "mine", "--set", "epochs=3", *service)
    assert refused.code == 2
    assert "relax: publication.host: '192.0.2.1' is no address to listen on here: " in refused.message
    assert Path("runs/mine/config.yaml").read_text() == before
    assert not Path("runs/mine/config.1.yaml").exists()
    assert json.loads(relax("train", "--resume", "mine").out)["updates"] == 2


def test_a_resume_that_fails_before_its_first_update_goes_on_with_its_settings(train: Relax, relax: Relax) -> None:
    assert train("--name", "mine").code == 0
    failed = relax("train", "--resume", "mine", "--set", "epochs=2", "--set", "timeouts.generation=0.001")
    assert failed.code == 1
    assert read_document(Path("runs/mine/config.yaml"))["epochs"] == 2


def test_a_run_that_another_process_trains_is_left_alone(train: Relax, relax: Relax) -> None:
    assert train("--name", "mine").code == 0
    with RunDirectory(Path("runs/mine")).held():
        before = content(Path("runs/mine"))
        refused = relax("train", "--resume", "mine", "--set", "epochs=2", "--set", "trainer.learning_rate=9")
        assert (refused.code, refused.out) == (2, "")
        assert refused.message == "relax: --resume: run 'runs/mine' is still going; end that process first"
        assert content(Path("runs/mine")) == before


def test_a_run_that_never_started_outlives_a_refused_resume(train: Relax, relax: Relax) -> None:
    assert train("--name", "mine").code == 0
    for path in Path("runs/mine").iterdir():
        if path.name not in ("config.yaml", "versions.json", "seed"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = content(Path("runs/mine"))
    assert relax("train", "--resume", "mine", "--set", "device=nonsense").code == 2
    assert before.items() <= content(Path("runs/mine")).items()
    assert relax("train", "--resume", "mine").code == 0


def test_other_data_or_another_seed_cannot_continue_a_run(train: Relax, relax: Relax) -> None:
    assert train("--name", "mine").code == 0
    seed = relax("train", "--resume", "mine", "--set", "seed=1")
    assert seed.code == 2
    assert "was started with 0, it cannot be resumed with 1" in seed.message
    summary = Path("runs/mine/summary.json").read_text()
    with Path("my.jsonl").open("a") as file:
        file.write('{"prompt": "one more", "label": "x"}\n')
    data = relax("train", "--resume", "mine", "--set", "epochs=2")
    assert data.code == 2
    assert "dataset: its content changed since the checkpoint" in data.message
    assert Path("runs/mine/summary.json").read_text() == summary


def test_a_finished_run_goes_on_for_another_epoch(train: Relax, relax: Relax) -> None:
    assert train("--name", "mine").code == 0
    ended = relax("train", "--resume", "mine", "--set", "epochs=2")
    assert ended.code == 0, ended.err
    summary = json.loads(ended.out)
    assert (summary["updates"], summary["trained"]) == (4, 32)
    stored = [read_document(Path(f"runs/mine/config{number}.yaml"))["epochs"] for number in (".1", "")]
    assert stored == [1, 2]
    tasks = [line["task"] for line in lines(Path("runs/mine/ledger.jsonl")) if line["event"] == "issued"]
    assert sorted(map(str, tasks)) == sorted(2 * [str(task) for task in range(16)])


def test_what_was_not_stored_as_a_secret_must_be_given_again(train: Relax, relax: Relax) -> None:
    stop = 'sampling.stop=["api_key=1"]'
    assert train("--name", "mine", "--set", stop).code == 0
    refused = relax("train", "--resume", "mine", "--set", "epochs=2")
    assert refused.code == 2
    assert "--resume: sampling.stop.0 is not stored, since it looks secret" in refused.message
    assert relax("train", "--resume", "mine", "--set", "epochs=2", "--set", stop).code == 0


def test_a_run_on_tasks_without_labels_can_be_continued(train: Relax, relax: Relax) -> None:
    Path("my.jsonl").write_text("".join(json.dumps({"prompt": f"{number}="}) + "\n" for number in range(16)))
    assert train("--name", "mine").code == 0
    assert relax("train", "--resume", "mine", "--set", "epochs=2").code == 0


def test_counters_go_on_after_a_resume(train: Relax, relax: Relax) -> None:
    write_reward("return float(len(response)) if len(response) % 2 else None", "my.py")
    with Path("my.jsonl").open("a") as file:
        file.write('{"prompt": "half a pair \\ud800"}\n')  # counted by the dataset, whenever it is read
    settings = ("--set", "batch.samples_per_task=8")
    first = train("--name", "mine", *settings)
    resumed = relax("train", "--resume", "mine", "--set", "epochs=2")
    whole = train("--name", "whole", *settings, "--set", "epochs=2")
    before, after, expected = (json.loads(ended.out)["counters"] for ended in (first, resumed, whole))
    assert after == expected
    assert expected["dataset/lone_surrogates"] == 1
    assert expected["reward/abstained"] > before["reward/abstained"] > 0


# Plugins of others


@pytest.fixture
def site(folder: Path) -> Iterator[Path]:
    """A folder on the import path to install plugins into; the registry looks at it afresh."""
    with importable(folder / "site"):
        registry.cache_clear()
        yield folder / "site"
    registry.cache_clear()


def test_a_broken_plugin_breaks_only_what_selects_it(site: Path, relax: Relax, train: Relax) -> None:
    install_source("relax-broken", "import does_not_exist", site)
    listed = relax("plugins", "list")
    assert listed.code == 0
    assert "No module named 'does_not_exist'" in listed.out
    selected = train("--set", "algorithm.name=broken")
    assert (selected.code, selected.out) == (3, "")
    assert "relax-broken is not usable (error): ModuleNotFoundError" in selected.message
    assert not Path("runs").exists()
    assert train().code == 0


@pytest.mark.parametrize("section", ["algorithm", "sinks.0"])
def test_a_component_whose_class_is_missing_is_a_broken_plugin(site: Path, train: Relax, section: str) -> None:
    source = algorithm("hollow")
    if section == "sinks.0":
        source = source.replace("relax_algorithms", "relax_sinks").replace("nowhere:B", "relax_core.config:Config")
    install_source("relax-hollow", source, site)
    ended = train("--set", f"{section}.name=hollow")
    assert ended.code == 3
    assert "cannot import nowhere:" in ended.message
    assert not Path("runs").exists() or not os.listdir("runs")


def test_a_sink_that_raises_is_told_and_counted_and_the_run_goes_on(site: Path, train: Relax) -> None:
    install_source("relax-raising", RAISING_SINK, site)
    ended = train("--name", "mine", "--set", "sinks=[console, raising]")
    assert ended.code == 0, ended.err
    assert "sink 'raising' raised OSError: the other side is gone" in ended.err
    assert json.loads(ended.out)["counters"]["sink/raising/error"] >= 2

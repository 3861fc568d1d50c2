"""The command line in this process, in an empty folder with a tiny model, some tasks and a reward."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from relax_core.cli import exits
from relax_core.cli.main import app

DEADLINE = 180.0

REWARD = "def score(prompt, response, label):\n    {body}\n"


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """The last line on stderr: the one that says what was wrong."""
        return self.err.rstrip("\n").rpartition("\n")[2]


Relax = Callable[..., Ended]


@pytest.fixture
def folder(tmp_path: Path, tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: ``model``, ``my.jsonl`` with 16 tasks, ``my.py`` with ``score``."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_model_path, "model")
    tasks = [{"prompt": f"{number}+1=", "label": str(number + 1)} for number in range(16)]
    Path("my.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    write_reward("return float(len(response))", "my.py")
    return tmp_path


def write_reward(body: str, name: str = "bad.py") -> str:
    """Writes a reward function with this body; returns how the command line names it."""
    Path(name).write_text(REWARD.format(body=body))
    return f"{name}:score"


def children() -> set[int]:
    """Processes that this one has started; the resource tracker of multiprocessing stays until it ends itself."""
    running = psutil.Process().children(recursive=True)
    return {child.pid for child in running if "resource_tracker" not in " ".join(child.cmdline())}


@pytest.fixture
def relax(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Relax:
    """``relax("train", ...)``: runs a command to its end; no process that it started may outlive it."""

    def start(*arguments: str) -> Ended:
        before = children()
        monkeypatch.setattr(sys, "argv", ["relax", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            exits.run(app)
        assert children() <= before, "a process was left behind"
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err, err
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0, out, err)

    return start


@pytest.fixture
def train(relax: Relax) -> Relax:
    """``train(model=..., data=..., reward=...)`` with the given options behind the three, and short answers."""

    def start(*arguments: str, model: str = "model", data: str = "my.jsonl", reward: str = "my.py:score") -> Ended:
        given = ("--model", model, "--data", data, "--reward", reward, "--set", "sampling.max_new_tokens=3")
        return relax("train", *given, *arguments)

    return start


def lines(path: Path) -> list[dict[str, object]]:
    """Whole lines of a file of JSON lines, as far as it is written."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


Started = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def started(folder: Path) -> Iterator[Started]:
    """Starts ``relax`` in a session of its own, as a shell starts a job; whatever is left is killed at the end."""
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> "subprocess.Popen[str]":
        program = Path(sys.executable).with_name("relax")
        process = subprocess.Popen(
            [program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "NO_COLOR": "1"},
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

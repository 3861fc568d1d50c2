"""Plain lines into a pipe, bars on a real pseudo-terminal."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from relax_core.api.context import Context
from relax_core.api.sink import RunInfo
from relax_core.sinks.config import ConsoleSinkConfig
from relax_core.sinks.console import ConsoleSink
from relax_core.testing.sink import SinkContract, Values

COLOUR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-8]|9[0-7])(?:;\d+)*m")


class TestConsoleSink(SinkContract):
    @pytest.fixture
    def sink(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> ConsoleSink:
        self.captured = capsys
        return ConsoleSink(ConsoleSinkConfig(samples=True), Context("run", 0, tmp_path))

    def read(self, directory: Path) -> Values:
        values = {}
        for line in self.captured.readouterr().err.splitlines():
            head, *parts = line.split("  ")
            if match := re.fullmatch(r"(train|warmup|eval) (\d+)(?:/\d+)?", head):
                for name, value in (part.split() for part in parts if not part.startswith(("eta", "sample"))):
                    full = name if "/" in name else f"{'eval' if match[1] == 'eval' else 'train'}/{name}"
                    values[match[1], int(match[2]), full] = float(value)
        return values


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., ConsoleSink]:
    def start(updates: int = 10, **settings: object) -> ConsoleSink:
        sink = ConsoleSink(ConsoleSinkConfig(**settings), Context("run", 0, tmp_path))
        sink.start(RunInfo("run", tmp_path, updates, {}))
        return sink

    return start


def test_a_line_says_how_far_the_run_is(make: Callable[..., ConsoleSink], capsys: pytest.CaptureFixture[str]) -> None:
    sink = make()
    sink.write("train", 1, {"train/loss": 0.5, "rollout/reward": 0.25, "train/grad_norm": 3.0})
    sink.write("train", 2, {"train/loss": 0.125, "rollout/reward": 1.0})
    first, second = capsys.readouterr().err.splitlines()
    assert first == "train 1/10  rollout/reward 0.25  loss 0.5"
    assert re.fullmatch(r"train 2/10  rollout/reward 1  loss 0\.125  eta \d+:\d\d:\d\d", second)


def test_an_evaluation_has_a_line_for_each_set(
    make: Callable[..., ConsoleSink], capsys: pytest.CaptureFixture[str]
) -> None:
    sink = make()
    sink.write("eval", 4, {"eval/easy/reward": 0.5, "eval/easy/response_tokens": 3.0})
    sink.write("eval", 4, {"eval/hard/reward": 0.25})
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["eval 4  easy/reward 0.5  easy/response_tokens 3", "eval 4  hard/reward 0.25"]


def test_every_thins_out_lines_but_not_the_last(
    make: Callable[..., ConsoleSink], capsys: pytest.CaptureFixture[str]
) -> None:
    sink = make(updates=8, every=3)
    for step in range(1, 9):
        sink.write("train", step, {"train/loss": 1.0})
    heads = [line.split("  ")[0] for line in capsys.readouterr().err.splitlines()]
    assert heads == ["train 3/8", "train 6/8", "train 8/8"]


def test_time_left_counts_from_where_this_process_began(
    make: Callable[..., ConsoleSink], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter([1000.0, 1000.0, 1004.0, 1004.0])
    monkeypatch.setattr("relax_core.sinks.console.time.monotonic", lambda: next(seconds))
    sink = make(updates=110)
    sink.write("train", 100, {"train/loss": 1.0})
    sink.write("train", 102, {"train/loss": 1.0})
    assert capsys.readouterr().err.splitlines()[1].endswith("eta 0:00:16")


def test_samples_are_shown_on_request_and_events_always(
    make: Callable[..., ConsoleSink], capsys: pytest.CaptureFixture[str]
) -> None:
    for samples in (False, True):
        sink = make(samples=samples)
        sink.text("train", 1, "sample", "steers \x1b[2J the terminal \udc80")
        sink.event("checkpoint", "update 1")
        error = capsys.readouterr().err
        assert "checkpoint: update 1\n" in error
        assert (r"steers \x1b[2J the terminal \udc80" in error) == samples
        assert "\x1b" not in error


def test_streams_of_single_roles_are_left_to_other_sinks(
    make: Callable[..., ConsoleSink], capsys: pytest.CaptureFixture[str]
) -> None:
    make().write("rollout", 4, {"reward/format": 1.0})
    assert capsys.readouterr().err == ""


PROGRAM = """
import pathlib, sys
from relax_core.api.context import Context
from relax_core.api.sink import RunInfo
from relax_core.sinks.config import ConsoleSinkConfig
from relax_core.sinks.console import ConsoleSink
sink = ConsoleSink(ConsoleSinkConfig(samples=True), Context("run", 0, pathlib.Path(".")))
assert "rich" not in sys.modules
sink.start(RunInfo("run", pathlib.Path("."), 2, {}))
sink.write("warmup", 1, {"train/loss": 3.0})
for step in (1, 2):
    sink.write("train", step, {"train/loss": 0.5, "rollout/reward": step})
sink.text("train", 2, "sample", "[red]no markup[/red] \\x1b[2J")
sink.event("checkpoint", "update 2")
sink.close()
"""


def on_terminal(**environment: str) -> bytes:
    """What the program shows on a terminal of 200 columns."""
    leader, follower = pty.openpty()
    variables = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "CI")}
    variables |= {"TERM": "xterm-256color", "COLUMNS": "200", "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    command = [sys.executable, "-c", PROGRAM]
    with os.fdopen(follower, "wb") as terminal:
        process = subprocess.Popen(command, stderr=terminal, env=variables)
    shown = b""
    try:
        while chunk := os.read(leader, 65536):
            shown += chunk
    except OSError:
        pass  # Linux reports the end of a terminal as an input/output error.
    os.close(leader)
    assert process.wait(60) == 0, shown.decode()
    return shown


def test_a_terminal_gets_bars() -> None:
    shown = on_terminal()
    plain = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", shown).decode()
    assert re.search(r"train +\S+ 2/2 rollout/reward 2  loss 0\.5", plain)
    assert re.search(r"warmup \S+ 1/1 train/loss 3", plain)
    assert "checkpoint: update 2" in plain
    assert r"[red]no markup[/red] \x1b[2J" in plain
    assert COLOUR.search(shown)


def test_no_color_is_respected() -> None:
    shown = on_terminal(NO_COLOR="1")
    assert b"train" in shown
    assert not COLOUR.search(shown)


def test_a_dumb_terminal_gets_plain_lines() -> None:
    assert b"\x1b" not in on_terminal(TERM="dumb")

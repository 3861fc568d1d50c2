"""The terminal: how far the run is, and what happened."""

import os
import sys
import time
from collections.abc import Mapping
from datetime import timedelta

from relax_core.api.context import Context
from relax_core.api.sink import RunInfo, Sink
from relax_core.sinks.config import ConsoleSinkConfig
from relax_core.sinks.progress import ProgressBars

PROGRESS = ("warmup", "train")
"""Streams that count updates."""


class ConsoleSink(Sink):
    """Writes to standard error: progress bars on a terminal, otherwise one plain line per ``every`` updates.

    Evaluations have a line each; streams beside ``warmup``, ``train`` and ``eval`` are left to other sinks. Events are
    always shown, texts only when the configuration asks for samples. Control characters are escaped, so that a sampled
    text cannot steer the terminal. ``NO_COLOR`` is respected; plain lines have no colour anyway.
    """

    def __init__(self, config: ConsoleSinkConfig, context: Context) -> None:
        self.config = config
        self._first: dict[str, tuple[int, float]] = {}
        self._bars: ProgressBars | None = None

    def start(self, run: RunInfo) -> None:
        self._totals = {"train": run.updates}
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            self._bars = ProgressBars()

    def write(self, stream: str, step: int, metrics: Mapping[str, float]) -> None:
        total = self._totals.get(stream)
        values = self._format(stream, metrics)
        position = f"{step}/{total}" if total else f"{step}"
        if stream == "eval":
            self._print(f"{stream} {position}  {values}")
        elif stream in PROGRESS and self._bars:
            self._bars.update(stream, step, total, values)
        elif stream in PROGRESS:
            remaining = self._remaining(stream, step, total)
            if step % self.config.every == 0 or step == total:
                self._print(f"{stream} {position}  {values}{remaining}")

    def text(self, stream: str, step: int, name: str, value: str) -> None:
        if self.config.samples:
            self._print(f"{stream} {step}  {name}:\n{value}")

    def event(self, name: str, message: str) -> None:
        if name == "failed":
            return  # The command line ends with the same sentence.
        self._print(f"{name}: {message}")

    def close(self) -> None:
        if self._bars:
            self._bars.close()

    def _format(self, stream: str, metrics: Mapping[str, float]) -> str:
        names = [name for name in self.config.metrics if name in metrics] or list(metrics)
        return "  ".join(f"{name.removeprefix(f'{stream}/')} {metrics[name]:.4g}" for name in names)

    def _remaining(self, stream: str, step: int, total: int | None) -> str:
        """Time left at the mean pace since this process's first line, which after a resume is not update 1."""
        first_step, first_time = self._first.setdefault(stream, (step, time.monotonic()))
        if total is None or step == first_step:
            return ""
        seconds = (time.monotonic() - first_time) / (step - first_step) * max(0, total - step)
        return f"  eta {timedelta(seconds=round(seconds))}"

    def _print(self, text: str) -> None:
        safe = "".join(_escape(character) for character in text)
        if self._bars:
            self._bars.print(safe)
        else:
            print(safe, file=sys.stderr, flush=True)


def _escape(character: str) -> str:
    if character.isprintable() or character in "\n\t":
        return character
    return character.encode("unicode_escape").decode()

"""A sound sink, and one for each classic error."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relax_core.api.sink import RunInfo, Sink


class Sound(Sink):
    """Writes JSON lines when it is closed."""

    def __init__(self) -> None:
        self.lines: list[list[Any]] = []

    def start(self, run: RunInfo) -> None:
        self.file = run.directory / "numbers.jsonl"

    def write(self, stream: str, step: int, metrics: Mapping[str, float]) -> None:
        self.lines += [[stream, step, name, value] for name, value in metrics.items()]

    def close(self) -> None:
        self.file.write_text("".join(json.dumps(line) + "\n" for line in self.lines))


def read(directory: Path) -> dict[tuple[str, int, str], float]:
    lines = [json.loads(line) for line in (directory / "numbers.jsonl").read_text().splitlines()]
    return {(stream, step, name): value for stream, step, name, value in lines}


class ForgetsTheLast(Sound):
    def close(self) -> None:
        self.lines = [line for line in self.lines if line[1] < 3]
        super().close()


class OneStepAxis(Sound):
    """Takes a step below the newest for a mistake, whatever its stream."""

    def write(self, stream: str, step: int, metrics: Mapping[str, float]) -> None:
        if all(step > line[1] for line in self.lines):
            super().write(stream, step, metrics)


class PrintsTexts(Sound):
    def text(self, stream: str, step: int, name: str, value: str) -> None:
        value.encode()


class RefusesNaN(Sound):
    def write(self, stream: str, step: int, metrics: Mapping[str, float]) -> None:
        if all(abs(value) < float("inf") for value in metrics.values()):
            super().write(stream, step, metrics)


class TakesOut(Sound):
    def write(self, stream: str, step: int, metrics: Mapping[str, float]) -> None:
        if isinstance(metrics, dict):
            metrics.pop("time/update", None)
        super().write(stream, step, metrics)


class NeedsAStep(Sound):
    def close(self) -> None:
        self.last = self.lines[-1]
        super().close()

"""The record of a run: append-only JSON lines, readable while the run goes on and after it was killed."""

import math
import time
from collections.abc import Mapping

from relax_core.api.context import Context
from relax_core.api.sink import RunInfo, Sink
from relax_core.checkpoint.files import JsonLines
from relax_core.sinks.config import JsonlSinkConfig

RESERVED = frozenset({"stream", "step", "time", "non_finite"})


class JsonlSink(Sink):
    """Writes ``metrics.jsonl``, ``samples.jsonl`` and ``events.jsonl``; a resumed run goes on in the same files.

    JSON has no NaN and no infinity: such a value is written as null, named with its kind under ``non_finite`` on the
    same line, and counted as ``metrics/non_finite``.
    """

    def __init__(self, config: JsonlSinkConfig, context: Context) -> None:
        self._count = context.count

    def start(self, run: RunInfo) -> None:
        self._metrics = JsonLines(run.directory / "metrics.jsonl")
        self._samples = JsonLines(run.directory / "samples.jsonl")
        self._events = JsonLines(run.directory / "events.jsonl")

    def write(self, stream: str, step: int, metrics: Mapping[str, float]) -> None:
        """One line; ``ValueError`` for a metric with the name of one of the line's own keys."""
        if clash := RESERVED & metrics.keys():
            raise ValueError(f"metric names {sorted(clash)} are keys of every line in metrics.jsonl; use another name")
        line: dict[str, object] = {"stream": stream, "step": step, "time": time.time(), **metrics}
        non_finite = {name: str(value) for name, value in metrics.items() if not math.isfinite(value)}
        if non_finite:
            line.update(dict.fromkeys(non_finite), non_finite=non_finite)
            self._count("metrics/non_finite", len(non_finite))
        self._metrics.append(line)

    def text(self, stream: str, step: int, name: str, value: str) -> None:
        self._samples.append({"stream": stream, "step": step, "name": name, "value": value})

    def event(self, name: str, message: str) -> None:
        self._events.append({"time": time.time(), "name": name, "message": message})

    def close(self) -> None:
        for file in (self._metrics, self._samples, self._events):
            file.close()

"""Sinks receive what a run tells: metrics, texts, events."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunInfo:
    """What a sink may want to know at the start.

    Args:
        run_id: Name of the run.
        directory: The run's folder.
        updates: Optimizer steps the run will make, warm-up apart.
        config: The resolved configuration, secrets redacted.
    """

    run_id: str
    directory: Path
    updates: int
    config: Mapping[str, Any]


class Sink(ABC):
    """One receiver, called from a single background thread behind a bounded queue.

    Metric names are TensorBoard tags (``train/loss``). ``stream`` names the step axis the values belong to
    (``train``, ``warmup``, ``eval``); steps of one stream never go back.
    """

    def __init__(self, config: Any, context: Any) -> None: ...

    def start(self, run: RunInfo) -> None:
        """The run begins."""

    @abstractmethod
    def write(self, stream: str, step: int, metrics: Mapping[str, float]) -> None:
        """Numbers of one step."""

    def text(self, stream: str, step: int, name: str, value: str) -> None:
        """A text of one step, for example a sample."""

    def event(self, name: str, message: str) -> None:
        """Something happened: a warning, a checkpoint, a restart."""

    def close(self) -> None:
        """Writes out what is held; nothing is written after it."""

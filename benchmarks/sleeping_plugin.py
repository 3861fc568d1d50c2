"""The engine and the trainer that sleep, as a plugin: the processes of a run build them by name.

Each writes down what the bound is computed of, in the folder of the run: the engine how long every trajectory took, the
trainer when each update was made.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field
from sleepers import SleepingEngine, SleepingTrainer

from relax_core.api.context import Context
from relax_core.api.engine import GenerateRequest, Generation
from relax_core.component import Component, hookimpl
from relax_core.config import EngineConfig, TrainerConfig

TRAJECTORIES, UPDATES = "trajectories.jsonl", "updates.jsonl"
METADATA = "Metadata-Version: 2.1\nName: relax-sleeping\nVersion: 0.1\n"
ENTRY_POINTS = "[relax]\nsleeping = sleeping_plugin\n"


def install(folder: Path) -> None:
    """Makes the plugin an installed one for whoever has the folder, and that of this file, on its path."""
    record = folder / "relax_sleeping-0.1.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text(METADATA, encoding="utf-8")
    (record / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")


@hookimpl
def relax_engines() -> list[Component]:
    """The engine."""
    return [Component("sleeping", "sleeping_plugin:Engine", "sleeping_plugin:EngineSettings", "Sleeps.")]


@hookimpl
def relax_trainers() -> list[Component]:
    """The trainer."""
    return [Component("sleeping", "sleeping_plugin:Trainer", "sleeping_plugin:TrainerSettings", "Sleeps.")]


class EngineSettings(EngineConfig):
    """Settings of the engine."""

    slots: int = Field(ge=1, description="Trajectories computed at once.")
    latency: float = Field(gt=0, description="Mean seconds in a slot.")
    sigma: float = Field(ge=0, description="Standard deviation of their logarithm.")
    tokens_per_second: float = Field(gt=0, description="Of one slot.")


class TrainerSettings(TrainerConfig):
    """Settings of the trainer."""

    seconds_per_row: float = Field(ge=0, description="Of an update.")


class Engine(SleepingEngine):
    """Writes down when each trajectory was asked for, and its seconds in a slot."""

    def __init__(self, config: EngineSettings, context: Context) -> None:
        super().__init__(config.slots, config.latency, config.sigma, config.tokens_per_second)
        self._path = context.directory / TRAJECTORIES

    async def generate(self, request: GenerateRequest) -> Generation:
        asked = time.time()
        generation = await super().generate(request)
        _append(self._path, {"key": request.key, "asked": asked, "seconds": self.seconds[request.key]})
        return generation


class Trainer(SleepingTrainer):
    """Writes down when each update was made."""

    def __init__(self, config: TrainerSettings, context: Context) -> None:
        super().__init__(config.seconds_per_row)
        self._path = context.directory / UPDATES

    def apply(self, denominator: float) -> Mapping[str, float]:
        _append(self._path, {"made": time.time()})
        return super().apply(denominator)


def _append(path: Path, line: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")

"""Settings of the weight sync through files. Imports no torch."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from relax_core.config.base import Config


class DiskWeightSyncConfig(Config):
    """Where publications wait for engines."""

    runtimes: ClassVar[tuple[str, ...]] = ("local", "serve")

    directory: Path | None = Field(
        None,
        description="Folder for publications that trainer and engines can both read, below it one per run; "
        "`/dev/shm` keeps them in memory. Absent: the run's folder.",
    )

"""Settings of the weight sync by broadcast. Imports no torch."""

from typing import ClassVar

from pydantic import Field

from relax_core.config.base import Config


class CollectiveWeightSyncConfig(Config):
    """Where trainer and engines meet."""

    runtimes: ClassVar[tuple[str, ...]] = ("local", "serve")
    keeps_newest: ClassVar[bool] = False
    """A broadcast is over when it is over: engines that start late ask the service of the run."""

    host: str = Field(
        "127.0.0.1", description="Address of the trainer's host that engines can reach; its port is free."
    )

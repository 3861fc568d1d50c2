"""Settings of the weight sync through shared memory. Imports no torch."""

from typing import ClassVar

from relax_core.config.base import Config


class ShmWeightSyncConfig(Config):
    """There is nothing to set."""

    runtimes: ClassVar[tuple[str, ...]] = ("local", "serve")

"""Settings of the local weight sync. Imports no torch."""

from relax_core.config.base import Config


class LocalWeightSyncConfig(Config):
    """There is nothing to set."""

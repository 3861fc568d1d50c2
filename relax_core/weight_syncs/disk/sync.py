"""Writes each publication into a folder; engines read it from there, also those that start later."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

from relax_core.api.context import Context
from relax_core.api.engine import Engine
from relax_core.api.weights import Acknowledgement, Publication, WeightSync
from relax_core.weight_syncs.disk.config import DiskWeightSyncConfig
from relax_core.weight_syncs.disk.publications import newest, remove_below, store
from relax_core.weights.exchange import exchange


class DiskWeightSync(WeightSync):
    """Keeps the newest publication, which an engine that is restarted will need, and removes it at the end."""

    def __init__(self, config: DiskWeightSyncConfig, context: Context) -> None:
        if config.directory is None:
            self.directory: Path = context.directory / "publications"
        else:
            self.directory = config.directory / f"relax-{context.run_id}"

    async def send(
        self, publication: Publication, engines: Sequence[Engine], timeout: float
    ) -> Sequence[Acknowledgement]:
        stored = await asyncio.to_thread(store, publication, self.directory)
        acknowledgements = await exchange(publication.manifest, stored, engines, timeout)
        await asyncio.to_thread(remove_below, self.directory, stored.version)
        return acknowledgements

    def newest(self) -> Publication | None:
        stored = newest(self.directory)
        return None if stored is None else Publication(stored.manifest(), stored)

    async def close(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

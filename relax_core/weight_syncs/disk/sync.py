"""Writes each publication into a folder; engines read it from there, also those that start later."""

import asyncio
import hashlib
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError

from relax_core.api.context import Context
from relax_core.api.engine import Engine
from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Acknowledgement, Publication, WeightSync
from relax_core.weight_syncs.disk.config import DiskWeightSyncConfig
from relax_core.weight_syncs.disk.publications import keep, kept, remove, store
from relax_core.weights.delta import chain, composed
from relax_core.weights.exchange import exchange


class DiskWeightSync(WeightSync):
    """Keeps the newest publication that all engines have, which one that is restarted will need, and removes it at the
    end."""

    def __init__(self, config: DiskWeightSyncConfig, context: Context) -> None:
        if config.directory is None:
            self.directory: Path = context.directory / "publications"
        else:
            # Runs of one name may be in several folders.
            place = hashlib.sha256(str(context.directory.resolve()).encode()).hexdigest()[:8]
            self.directory = config.directory / f"relax-{context.run_id}-{place}"
        self._kept: list[Publication] = []

    async def stage(self, publication: Publication) -> Publication:
        try:
            stored = await asyncio.to_thread(store, publication, self.directory)
        except (OSError, SafetensorError) as error:
            version = publication.manifest.version
            raise WeightSyncError(
                f"weight_sync: version {version} cannot be written to {str(self.directory)!r}: {error}"
            ) from error
        return Publication(publication.manifest, stored)

    async def send(
        self, staged: Publication, engines: Mapping[str, Engine], timeout: float
    ) -> Mapping[str, Acknowledgement]:
        acknowledgements = await exchange(staged.manifest, staged.buckets, engines, timeout)
        self._kept = chain(self._kept, staged)
        await asyncio.to_thread(keep, self._kept, self.directory)
        return acknowledgements

    def newest(self) -> Publication | None:
        return composed(kept(self.directory))

    async def close(self) -> None:
        self._kept = []
        await asyncio.to_thread(remove, self.directory)

"""Copies each publication once, into memory that engines of the host map; also those that start later."""

import asyncio
from collections.abc import Mapping

from relax_core.api.context import Context
from relax_core.api.engine import Engine
from relax_core.api.weights import Acknowledgement, Publication, WeightSync
from relax_core.weight_syncs.shm.config import ShmWeightSyncConfig
from relax_core.weight_syncs.shm.memory import SharedPublication, read_record, write_record
from relax_core.weights.delta import composed
from relax_core.weights.exchange import exchange
from relax_core.weights.manifest import in_place
from relax_core.weights.shared_memory import SharedWeights, anonymous_file

RECORD = "publications.json"
"""In the run's folder: where the memory is. The memory itself has no name and ends with this process."""


class ShmWeightSync(WeightSync):
    """Keeps what a late engine needs: the newest full publication, and the deltas after it. Memory is used again."""

    def __init__(self, config: ShmWeightSyncConfig, context: Context) -> None:
        self._record = context.directory / RECORD
        self._free: list[SharedWeights] = []
        self._kept: list[tuple[Publication, SharedWeights]] = []
        self._staged: tuple[Publication, SharedWeights] | None = None

    async def stage(self, publication: Publication) -> Publication:
        if self._staged is not None:
            # It was never acknowledged, and somebody who is late may still be reading it.
            self._staged[1].close()
        memory = self._free.pop() if self._free else SharedWeights(anonymous_file())
        places = await asyncio.to_thread(memory.write, in_place(publication))
        staged = Publication(publication.manifest, SharedPublication.of(memory, places))
        self._staged = staged, memory
        return staged

    async def send(
        self, staged: Publication, engines: Mapping[str, Engine], timeout: float
    ) -> Mapping[str, Acknowledgement]:
        acknowledgements = await exchange(staged.manifest, staged.buckets, engines, timeout)
        self._keep()
        return acknowledgements

    def _keep(self) -> None:
        """What was sent takes the place of what a late engine needed before."""
        assert self._staged is not None, "what is sent was staged here"
        former = self._kept if self._staged[0].manifest.kind == "full" else []
        self._kept = [*([] if former else self._kept), self._staged]
        self._staged = None
        write_record(self._record, [publication for publication, _ in self._kept])
        self._free += [memory for _, memory in former]

    def newest(self) -> Publication | None:
        return composed(read_record(self._record))

    async def close(self) -> None:
        staged = [] if self._staged is None else [self._staged[1]]
        for memory in [*self._free, *staged, *(memory for _, memory in self._kept)]:
            memory.close()
        self._free, self._kept, self._staged = [], [], None
        self._record.unlink(missing_ok=True)

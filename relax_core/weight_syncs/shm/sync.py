"""Copies each publication once, into memory that engines of the host map; also those that start later."""

import asyncio
from collections.abc import Mapping

from relax_core.api.context import Context
from relax_core.api.engine import Engine
from relax_core.api.weights import Acknowledgement, Publication, WeightSync
from relax_core.weight_syncs.shm.config import ShmWeightSyncConfig
from relax_core.weight_syncs.shm.memory import SharedPublication
from relax_core.weights.delta import composed
from relax_core.weights.exchange import exchange
from relax_core.weights.manifest import in_place
from relax_core.weights.record import read_record, write_record
from relax_core.weights.shared_memory import SharedWeights, anonymous_file

RECORD = "publications.json"
"""In the run's folder: where the memory is. The memory itself has no name and ends with this process."""


class ShmWeightSync(WeightSync):
    """Keeps what a late engine needs: the newest full publication, and the deltas after it. The memory of full ones is
    used again. It never shrinks, so that of a delta is a new one, given back with what the delta builds on."""

    def __init__(self, config: ShmWeightSyncConfig, context: Context) -> None:
        self._record = context.directory / RECORD
        self._free: list[SharedWeights] = []
        self._kept: list[tuple[Publication, SharedWeights]] = []
        self._staged: tuple[Publication, SharedWeights] | None = None

    async def stage(self, publication: Publication) -> Publication:
        if self._staged is not None:
            # It was never acknowledged, and somebody who is late may still be reading it.
            self._staged[1].close()
        memory = self._free.pop() if self._free and _is_full(publication) else SharedWeights(anonymous_file())
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
        former = self._kept if _is_full(self._staged[0]) else []
        self._kept = [*([] if former else self._kept), self._staged]
        self._staged = None
        write_record(self._record, [publication for publication, _ in self._kept], SharedPublication.place)
        for publication, memory in former:
            if _is_full(publication):
                self._free.append(memory)
            else:
                memory.close()

    def newest(self) -> Publication | None:
        kept = read_record(self._record, SharedPublication.at)
        return composed(kept) if all(_is_there(publication) for publication in kept) else None

    async def close(self) -> None:
        staged = [] if self._staged is None else [self._staged[1]]
        for memory in [*self._free, *staged, *(memory for _, memory in self._kept)]:
            memory.close()
        self._free, self._kept, self._staged = [], [], None
        self._record.unlink(missing_ok=True)


def _is_full(publication: Publication) -> bool:
    return publication.manifest.kind == "full"


def _is_there(publication: Publication) -> bool:
    """Whether the process that holds the memory of a publication still does."""
    assert isinstance(publication.buckets, SharedPublication)
    return publication.buckets.is_there

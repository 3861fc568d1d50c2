"""Weight syncs with one classic error each."""

import math
from collections.abc import Sequence

from relax_core.api.engine import Engine
from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Acknowledgement, Publication
from relax_core.weight_syncs.local.sync import LocalWeightSync


class SendsNothing(LocalWeightSync):
    """Says that all is well."""

    async def send(self, publication: Publication, engines: Sequence[Engine], timeout: float) -> list[Acknowledgement]:
        names = frozenset(publication.manifest.tensors)
        return [Acknowledgement(publication.manifest.version, names, len(names)) for _ in engines]


class SendsToTheFirst(LocalWeightSync):
    async def send(
        self, publication: Publication, engines: Sequence[Engine], timeout: float
    ) -> Sequence[Acknowledgement]:
        return await super().send(publication, engines[:1], timeout)


class HidesErrors(LocalWeightSync):
    async def send(
        self, publication: Publication, engines: Sequence[Engine], timeout: float
    ) -> Sequence[Acknowledgement]:
        try:
            return await super().send(publication, engines, timeout)
        except WeightSyncError:
            return []


class WaitsForEver(LocalWeightSync):
    async def send(
        self, publication: Publication, engines: Sequence[Engine], timeout: float
    ) -> Sequence[Acknowledgement]:
        return await super().send(publication, engines, math.inf)


class BelievesEngines(LocalWeightSync):
    async def send(self, publication: Publication, engines: Sequence[Engine], timeout: float) -> list[Acknowledgement]:
        buckets = list(publication.buckets)
        return [await engine.update(publication.manifest, buckets) for engine in engines]


class LosesTheCause(LocalWeightSync):
    async def send(
        self, publication: Publication, engines: Sequence[Engine], timeout: float
    ) -> Sequence[Acknowledgement]:
        try:
            return await super().send(publication, engines, timeout)
        except WeightSyncError:
            raise WeightSyncError("an engine failed") from None


class ClosesOnce(LocalWeightSync):
    open = True

    async def close(self) -> None:
        assert self.open
        self.open = False

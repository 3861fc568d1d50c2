"""Weight syncs with one classic error each."""

import math
from collections.abc import Mapping

from relax_core.api.engine import Engine
from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Acknowledgement, Publication
from relax_core.weight_syncs.local.sync import LocalWeightSync


class SendsNothing(LocalWeightSync):
    """Says that all is well."""

    async def send(
        self, staged: Publication, engines: Mapping[str, Engine], timeout: float
    ) -> dict[str, Acknowledgement]:
        names = frozenset(staged.manifest.tensors)
        return {name: Acknowledgement(staged.manifest.version, names, len(names)) for name in engines}


class SendsToTheFirst(LocalWeightSync):
    async def send(
        self, staged: Publication, engines: Mapping[str, Engine], timeout: float
    ) -> Mapping[str, Acknowledgement]:
        return await super().send(staged, dict(list(engines.items())[:1]), timeout)


class HidesErrors(LocalWeightSync):
    async def send(
        self, staged: Publication, engines: Mapping[str, Engine], timeout: float
    ) -> Mapping[str, Acknowledgement]:
        try:
            return await super().send(staged, engines, timeout)
        except WeightSyncError:
            return {}


class WaitsForEver(LocalWeightSync):
    async def send(
        self, staged: Publication, engines: Mapping[str, Engine], timeout: float
    ) -> Mapping[str, Acknowledgement]:
        return await super().send(staged, engines, math.inf)


class BelievesEngines(LocalWeightSync):
    async def send(
        self, staged: Publication, engines: Mapping[str, Engine], timeout: float
    ) -> dict[str, Acknowledgement]:
        return {name: await engine.update(staged.manifest, staged.buckets) for name, engine in engines.items()}


class LosesTheCause(LocalWeightSync):
    async def send(
        self, staged: Publication, engines: Mapping[str, Engine], timeout: float
    ) -> Mapping[str, Acknowledgement]:
        try:
            return await super().send(staged, engines, timeout)
        except WeightSyncError:
            raise WeightSyncError("an engine failed") from None


class ClosesOnce(LocalWeightSync):
    open = True

    async def close(self) -> None:
        assert self.open
        self.open = False

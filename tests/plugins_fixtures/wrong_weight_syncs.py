"""Weight syncs with one classic error each."""

import math
from collections.abc import Mapping

from relax_core.api.engine import Engine
from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Acknowledgement, Publication
from relax_core.weight_syncs.local.sync import LocalWeightSync
from relax_core.weights.manifest import in_place


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


class SharesTheTrainersMemory(LocalWeightSync):
    async def stage(self, publication: Publication) -> Publication:
        return Publication(publication.manifest, list(in_place(publication)))


class SendsNoChanges(LocalWeightSync):
    async def stage(self, publication: Publication) -> Publication:
        staged = await super().stage(publication)
        return Publication(staged.manifest, []) if staged.manifest.kind == "delta" else staged


class KeepsTheFirst(LocalWeightSync):
    kept: Publication | None = None

    async def stage(self, publication: Publication) -> Publication:
        staged = await super().stage(publication)
        self.kept = self.kept or staged
        return staged

    def newest(self) -> Publication | None:
        return self.kept


class OffersWhatIsStaged(LocalWeightSync):
    kept: Publication | None = None

    async def stage(self, publication: Publication) -> Publication:
        self.kept = await super().stage(publication)
        return self.kept

    def newest(self) -> Publication | None:
        return self.kept

    async def close(self) -> None:
        self.kept = None


class OffersForEver(LocalWeightSync):
    kept: Publication | None = None

    async def send(
        self, staged: Publication, engines: Mapping[str, Engine], timeout: float
    ) -> Mapping[str, Acknowledgement]:
        taken = await super().send(staged, engines, timeout)
        self.kept = staged if staged.manifest.kind == "full" else self.kept
        return taken

    def newest(self) -> Publication | None:
        return self.kept


class SkipsOldVersions(LocalWeightSync):
    version = 0

    async def send(
        self, staged: Publication, engines: Mapping[str, Engine], timeout: float
    ) -> Mapping[str, Acknowledgement]:
        if staged.manifest.version <= self.version:
            return {}
        self.version = staged.manifest.version
        return await super().send(staged, engines, timeout)


class GivesUp(LocalWeightSync):
    failed = False

    async def send(
        self, staged: Publication, engines: Mapping[str, Engine], timeout: float
    ) -> Mapping[str, Acknowledgement]:
        if self.failed:
            raise WeightSyncError("a publication failed before")
        self.failed = True
        taken = await super().send(staged, engines, timeout)
        self.failed = False
        return taken


class ClosesOnce(LocalWeightSync):
    open = True

    async def close(self) -> None:
        assert self.open
        self.open = False

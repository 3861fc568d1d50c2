"""Hands the trainer's tensors to engines of the same process, by reference; each engine copies them."""

from collections.abc import Sequence

from relax_core.api.context import Context
from relax_core.api.engine import Engine
from relax_core.api.weights import Acknowledgement, Publication, WeightSync
from relax_core.weight_syncs.local.config import LocalWeightSyncConfig
from relax_core.weights.exchange import exchange


class LocalWeightSync(WeightSync):
    """Every engine reads the same tensors."""

    def __init__(self, config: LocalWeightSyncConfig, context: Context) -> None: ...

    async def send(
        self, publication: Publication, engines: Sequence[Engine], timeout: float
    ) -> Sequence[Acknowledgement]:
        # Buckets are copies, made one by one as they are read: kept only where several engines read them.
        buckets = publication.buckets if len(engines) == 1 else list(publication.buckets)
        return await exchange(publication.manifest, buckets, engines, timeout)

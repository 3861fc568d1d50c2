"""Hands copies of the trainer's tensors to engines of the same process, by reference; each engine copies them again."""

from collections.abc import Mapping

from relax_core.api.context import Context
from relax_core.api.engine import Engine
from relax_core.api.weights import Acknowledgement, Publication, WeightSync
from relax_core.weight_syncs.local.config import LocalWeightSyncConfig
from relax_core.weights.exchange import exchange


class LocalWeightSync(WeightSync):
    """Every engine reads the same tensors."""

    def __init__(self, config: LocalWeightSyncConfig, context: Context) -> None: ...

    async def send(
        self, staged: Publication, engines: Mapping[str, Engine], timeout: float
    ) -> Mapping[str, Acknowledgement]:
        return await exchange(staged.manifest, staged.buckets, engines, timeout)

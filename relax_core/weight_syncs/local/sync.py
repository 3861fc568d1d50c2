"""Hands the trainer's tensors to engines of the same process, by reference; each engine copies them."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from relax_core.api.context import Context
from relax_core.api.engine import Engine
from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Acknowledgement, Publication, WeightSync
from relax_core.weight_syncs.local.config import LocalWeightSyncConfig


class LocalWeightSync(WeightSync):
    """Pauses all engines, updates all, resumes all; after a failure they stay paused, so that no two versions serve."""

    def __init__(self, config: LocalWeightSyncConfig, context: Context) -> None: ...

    async def send(
        self, publication: Publication, engines: Sequence[Engine], timeout: float
    ) -> Sequence[Acknowledgement]:
        """Brings a publication to every engine.

        Raises:
            WeightSyncError: Names the engines that refused, or did not answer within ``timeout`` seconds.
        """
        manifest = publication.manifest
        buckets = list(publication.buckets)
        deadline = asyncio.get_running_loop().time() + timeout
        await _each("pause", [engine.pause() for engine in engines], engines, deadline)
        updates = [engine.update(manifest, buckets) for engine in engines]
        acknowledgements: list[Acknowledgement] = await _each("update", updates, engines, deadline)
        for index, acknowledgement in enumerate(acknowledgements):
            if acknowledgement.version != manifest.version or acknowledgement.names != manifest.tensors.keys():
                raise WeightSyncError(
                    f"{_name(engines, index)}: acknowledged {len(acknowledgement.names)} tensors of version "
                    f"{acknowledgement.version}, published were {len(manifest.tensors)} of version {manifest.version}"
                )
        await _each("resume", [engine.resume() for engine in engines], engines, deadline)
        return acknowledgements


async def _each(
    action: str, calls: Sequence[Coroutine[Any, Any, Any]], engines: Sequence[Engine], deadline: float
) -> list[Any]:
    """Results of one call to every engine, made together."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        async with asyncio.timeout_at(deadline):
            results = await asyncio.gather(*tasks, return_exceptions=True)
    except TimeoutError as error:
        late = [_name(engines, index) for index, task in enumerate(tasks) if task.cancelled()]
        raise WeightSyncError(f"{', '.join(late)}: no answer to {action!r} before the deadline") from error
    for index, result in enumerate(results):
        if isinstance(result, BaseException):
            raise WeightSyncError(f"{_name(engines, index)}: {action!r} failed: {result}") from result
    return results


def _name(engines: Sequence[Engine], index: int) -> str:
    return f"engine {index} of {len(engines)} ({type(engines[index]).__name__})"

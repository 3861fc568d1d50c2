"""A publication reaches several engines: all paused, all updated, all resumed, by one deadline."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from relax_core.api.engine import Engine
from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Acknowledgement, Bucket, Manifest


async def exchange(
    manifest: Manifest, buckets: Iterable[Bucket], engines: Sequence[Engine], timeout: float
) -> Sequence[Acknowledgement]:
    """Brings a publication to every engine; after a failure they stay paused, so that no two versions serve.

    Args:
        manifest: What is published.
        buckets: Its tensors; read once by each engine.
        engines: All receivers.
        timeout: Seconds for everything.

    Raises:
        WeightSyncError: Names the engines that refused, or did not answer within ``timeout`` seconds.
    """
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
        who = ", ".join(late) or "all engines"
        raise WeightSyncError(f"timeouts.weight_sync: {who}: no answer to {action!r} before the deadline") from error
    for index, result in enumerate(results):
        if isinstance(result, BaseException):
            raise WeightSyncError(f"{_name(engines, index)}: {action!r} failed: {result}") from result
    return results


def _name(engines: Sequence[Engine], index: int) -> str:
    return f"engine {index} of {len(engines)} ({type(engines[index]).__name__})"

"""A publication reaches several engines: all receive it, then all pause, all swap, all resume, by one deadline."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any

from relax_core.api.engine import Engine
from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Acknowledgement, Bucket, Manifest


async def exchange(
    manifest: Manifest, buckets: Iterable[Bucket], engines: Mapping[str, Engine], timeout: float
) -> Mapping[str, Acknowledgement]:
    """Brings a publication to every engine. They go on generating until all of them have received it.

    Whoever cannot receive leaves everybody as before. After a failure from the pause on all stay paused, so that no two
    versions serve.

    Args:
        manifest: What is published.
        buckets: Its tensors; read once by each engine.
        engines: All receivers, by name.
        timeout: Seconds for everything.

    Raises:
        WeightSyncError: Names the engines that refused, or did not answer within ``timeout`` seconds.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    await _each("receive", engines, lambda engine: engine.receive(manifest, buckets), deadline)
    paused = loop.time()
    await _each("pause", engines, lambda engine: engine.pause(), deadline)
    taken: Mapping[str, Acknowledgement]
    taken = await _each("update", engines, lambda engine: engine.update(manifest, buckets), deadline)
    for name, acknowledgement in taken.items():
        if acknowledgement.version != manifest.version or acknowledgement.names != manifest.tensors.keys():
            raise WeightSyncError(
                f"{name}: acknowledged {len(acknowledgement.names)} tensors of version {acknowledgement.version}, "
                f"published were {len(manifest.tensors)} of version {manifest.version}"
            )
    await _each("resume", engines, lambda engine: engine.resume(), deadline)
    pause = loop.time() - paused
    return {name: replace(acknowledgement, pause=pause) for name, acknowledgement in taken.items()}


async def _each(
    action: str,
    engines: Mapping[str, Engine],
    call: Callable[[Engine], Coroutine[Any, Any, Any]],
    deadline: float,
) -> dict[str, Any]:
    """Results of one call to every engine, made together."""
    tasks = {name: asyncio.create_task(call(engine)) for name, engine in engines.items()}
    remaining = max(deadline - asyncio.get_running_loop().time(), 0.0)
    try:
        if tasks:
            await asyncio.wait(tasks.values(), timeout=remaining, return_when=asyncio.FIRST_EXCEPTION)
        for name, task in tasks.items():
            if task.done() and (error := task.exception()) is not None:
                raise WeightSyncError(f"{name}: {action!r} failed: {error}") from error
        if late := [name for name, task in tasks.items() if not task.done()]:
            who = ", ".join(late)
            raise WeightSyncError(f"timeouts.weight_sync: {who}: no answer to {action!r} before the deadline")
        return {name: task.result() for name, task in tasks.items()}
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)

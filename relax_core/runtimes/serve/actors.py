"""Named actors of a run: started with what they need, and killed so that their name is free."""

import asyncio
from typing import Any

import ray
from ray.actor import ActorHandle

from relax_core.api.errors import RelaxError
from relax_core.transports.ray.calls import ActorLost, afind_actor

CLOSE_SECONDS = 10.0
"""Seconds in which an actor ends when it is asked to, and in which the cluster forgets one that was killed."""


def start_actor(
    kind: type, name: str, namespace: str, *arguments: Any, accelerators: int = 0, **options: Any
) -> ActorHandle:
    """Starts an actor of a class; it ends with the process that started it.

    Args:
        kind: Its class.
        name: In the namespace.
        namespace: The run's id.
        arguments: Of the class.
        accelerators: That it holds alone.
        options: Of Ray.
    """
    # Concurrency groups belong to the class, everything else to the actor.
    groups = {key: options.pop(key) for key in ("concurrency_groups",) if key in options}
    remote: Any = ray.remote(**groups)(kind) if groups else ray.remote(kind)
    described = {"name": name, "namespace": namespace, "num_cpus": 0, "num_gpus": accelerators}
    actor: ActorHandle = remote.options(**described, **options).remote(*arguments)
    return actor


async def kill_actor(actor: ActorHandle, name: str, namespace: str) -> None:
    """Kills an actor; returns when the cluster no longer knows it, so that its name is free.

    Raises:
        RelaxError: It is still there after :data:`CLOSE_SECONDS`.
    """
    ray.kill(actor)
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            while True:
                await afind_actor(name, namespace)
                await asyncio.sleep(0.1)
    except ActorLost:
        return
    except TimeoutError as error:
        raise RelaxError(f"{name} was killed, and is still there after {CLOSE_SECONDS:g} s") from error

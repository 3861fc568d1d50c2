"""Calls to named actors: each with a deadline, and with errors that Relax knows."""

import asyncio
from collections.abc import Sequence
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from relax_core.api.errors import DeadlineExceeded, RelaxError

CALL_SECONDS = 60.0
"""Deadline of a call that only looks something up or writes something down."""


class ActorLost(RelaxError):
    """The process of an actor is gone."""


def find_actor(name: str, namespace: str) -> ActorHandle:
    """The actor of that name.

    Raises:
        ActorLost: There is none now.
    """
    if not ray.is_initialized():  # Ray would start a cluster of its own accord.
        raise ActorLost(f"{namespace}: this process is in no Ray cluster")
    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError as error:
        raise ActorLost(f"{namespace}: there is no actor {name!r} now") from error


def call(actor: ActorHandle, method: str, *arguments: Any, timeout: float = CALL_SECONDS) -> Any:
    """The result of ``actor.method(*arguments)``; waits in this thread.

    Raises:
        DeadlineExceeded: No answer within ``timeout`` seconds.
        ActorLost: The actor is dead, or died meanwhile.
        RelaxError: Whatever the method raised; another error than Relax's own is one with its type in front.
    """
    try:
        return ray.get(getattr(actor, method).remote(*arguments), timeout=timeout)
    except (RayError, OSError) as error:
        raise _known(error, method, timeout) from error


async def acall(actor: ActorHandle, method: str, *arguments: Any, timeout: float = CALL_SECONDS) -> Any:
    """:func:`call`, without holding up the event loop."""
    try:
        reference = getattr(actor, method).remote(*arguments)
        return await asyncio.wait_for(asyncio.wrap_future(reference.future()), timeout)
    except TimeoutError as error:
        raise _late(method, timeout) from error
    except (RayError, OSError) as error:
        raise _known(error, method, timeout) from error


def gather(pending: Sequence[Any], method: str, timeout: float) -> list[Any]:
    """The results of calls that were made at once; errors as of :func:`call`."""
    try:
        results: list[Any] = ray.get(list(pending), timeout=timeout)
    except (RayError, OSError) as error:
        raise _known(error, method, timeout) from error
    return results


def _late(method: str, timeout: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"{method}: no answer within {timeout:g} s")


def _known(error: Exception, method: str, timeout: float) -> RelaxError:
    if isinstance(error, GetTimeoutError):
        return _late(method, timeout)
    if isinstance(error, RayActorError):
        # A constructor that raised is told with its whole traceback; the last line says what was wrong.
        lines = str(error).strip().splitlines()
        return ActorLost(f"{method}: the actor is dead: {lines[-1] if 'Traceback' in str(error) else lines[0]}")
    if isinstance(error, RayTaskError) and isinstance(error.cause, RelaxError):
        return error.cause
    cause = error.cause if isinstance(error, RayTaskError) else error
    return RelaxError(f"{method}: {type(cause).__name__}: {_first_line(cause)}")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]

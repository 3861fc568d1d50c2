"""Calls to named actors: each with a deadline, and with errors that Relax knows.

Ray repeats no call by itself, as actors are started without ``max_task_retries``: a call is made once or not at all.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Thread
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayError, RayTaskError

from relax_core.api.errors import ConfigError, DeadlineExceeded, PluginError, RelaxError

_REFUSALS = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in (ConfigError, PluginError)}
"""By the name that a traceback has for them: errors with which no actor can be started, now or later."""

CALL_SECONDS = 60.0
"""Deadline of a call that only looks something up or writes something down."""


class ActorLost(RelaxError):
    """The process of an actor is gone."""


class ActorUnavailable(ActorLost):
    """The connection to an actor broke; the actor may live, and may have done what it was asked."""


def find_actor(name: str, namespace: str, timeout: float = CALL_SECONDS) -> ActorHandle:
    """The actor of that name.

    Raises:
        ActorLost: There is none now.
        DeadlineExceeded: The cluster has not said within ``timeout`` seconds.
    """
    if not ray.is_initialized():  # Ray would start a cluster of its own accord.
        raise ActorLost(f"{namespace}: this process is in no Ray cluster")
    try:
        return within(timeout, f"find actor {name!r}", lambda: ray.get_actor(name, namespace=namespace))
    except ValueError as error:
        raise ActorLost(f"{namespace}: there is no actor {name!r} now") from error


async def afind_actor(name: str, namespace: str, timeout: float = CALL_SECONDS) -> ActorHandle:
    """:func:`find_actor`, without holding up the event loop."""
    return await asyncio.to_thread(find_actor, name, namespace, timeout)


def call(
    actor: ActorHandle, method: str, *arguments: Any, timeout: float = CALL_SECONDS, threads: str | None = None
) -> Any:
    """The result of ``actor.method(*arguments)``; waits in this thread.

    Args:
        actor: Whom to ask.
        method: What to call.
        arguments: What with.
        timeout: Seconds until the answer.
        threads: Concurrency group of the actor that serves the call; the method's own by default.

    Raises:
        DeadlineExceeded: No answer within ``timeout`` seconds.
        ActorLost: The actor is dead, or died meanwhile.
        ActorUnavailable: The connection broke, and what became of the call is unknown.
        RelaxError: Whatever the method raised; another error than Relax's own is one with its type in front.
    """
    bound = getattr(actor, method)
    try:
        sent = (
            bound.remote(*arguments) if threads is None else bound.options(concurrency_group=threads).remote(*arguments)
        )
        return ray.get(sent, timeout=timeout)
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


def within(timeout: float, what: str, ask: Callable[[], Any]) -> Any:
    """What ``ask`` returns or raises, for calls that know no deadline.

    Raises:
        DeadlineExceeded: Nothing yet after ``timeout`` seconds. A thread goes on waiting.
    """
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()
    try:
        return answer.result(timeout)
    except TimeoutError as error:
        raise _late(what, timeout) from error


def _late(method: str, timeout: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"{method}: no answer within {timeout:g} s")


def _known(error: Exception, method: str, timeout: float) -> RelaxError:
    if isinstance(error, GetTimeoutError):
        return _late(method, timeout)
    if isinstance(error, ActorUnavailableError):
        return ActorUnavailable(f"{method}: {_first_line(error)}")
    if isinstance(error, RayActorError):
        # A constructor that raised is told with its whole traceback, as text; the last line says what was wrong.
        lines = str(error).strip().splitlines()
        kind, _, text = lines[-1].partition(": ")
        if kind in _REFUSALS:
            return _REFUSALS[kind](text)
        return ActorLost(f"{method}: the actor is dead: {lines[-1] if 'Traceback' in str(error) else lines[0]}")
    if isinstance(error, RayTaskError) and isinstance(error.cause, RelaxError):
        return error.cause
    cause = error.cause if isinstance(error, RayTaskError) else error
    return RelaxError(f"{method}: {type(cause).__name__}: {_first_line(cause)}")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]

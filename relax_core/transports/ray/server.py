"""The actor that all ends of a run's transport ask."""

import time
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from relax_core.api.errors import DeadlineExceeded, TransportError, TransportLost
from relax_core.transports.ray.calls import ActorLost, ActorUnavailable, call, find_actor

SERVER = "transport"
"""Name of the actor, in the namespace of the run."""

WAITING = "waiting"
WAITING_THREADS, THREADS = 64, 4
"""Calls in the actor at the same time: those that wait for rows or room never keep the others out."""

START_SECONDS = 120.0
"""What a process may need until it has started, on a busy machine."""

CLOSE_SECONDS = 10.0
"""In which the cluster forgets a server that was killed."""

PAUSE_SECONDS = 0.5
"""Between two tries over a connection that breaks."""


class RunServer:
    """The server of a run's transport, from wherever: started on the node of the process that opens the transport, with
    which it dies, and found by the run's name.

    Args:
        run_id: Name of the run.
        call_seconds: What a call may take beyond the time it was asked to wait.
    """

    def __init__(self, run_id: str, call_seconds: float) -> None:
        self._run_id = run_id
        self._call_seconds = call_seconds
        self._actor: ActorHandle | None = None
        self._started = False

    def start(self, kind: type, *arguments: Any) -> None:
        """Starts the server, ``kind(*arguments)``.

        Raises:
            TransportError: It is started already, by whatever process, or there is no Ray cluster.
            DeadlineExceeded: Ray has not started it in time.
        """
        if not ray.is_initialized():
            raise TransportError(
                f"the transport of run {self._run_id!r} needs a Ray cluster, as --runtime serve starts; there is none"
            )
        if self._started:
            raise TransportError("the transport is open already")
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        groups: dict[str, Any] = {"concurrency_groups": {WAITING: WAITING_THREADS}}
        options = {"name": SERVER, "namespace": self._run_id, "num_cpus": 0, "max_concurrency": THREADS}
        actor: Any = ray.remote(**groups)(kind)
        try:
            self._actor = actor.options(**options, scheduling_strategy=here).remote(*arguments)
        except ValueError as error:
            raise TransportError(f"run {self._run_id!r} has a transport on this cluster already: {error}") from error
        self._started = True
        call(self._actor, "__ray_ready__", timeout=START_SECONDS)

    def call(self, method: str, *arguments: Any, wait: float = 0.0, repeatable: bool = False) -> Any:
        """What the server's method returns or raises.

        Args:
            method: Name.
            arguments: Its arguments.
            wait: Seconds that the method was asked to wait.
            repeatable: The call changes nothing when it is made twice, so it may be where the connection breaks.

        Raises:
            DeadlineExceeded: No answer in time.
            TransportLost: The server is gone.
            TransportError: The connection broke and nobody knows whether it has been done.
        """
        seconds, threads = self._call_seconds + wait, WAITING if wait else None
        deadline = time.monotonic() + seconds
        while True:
            try:
                if self._actor is None:
                    self._actor = find_actor(SERVER, self._run_id, seconds)
                return call(self._actor, method, *arguments, timeout=seconds, threads=threads)
            except ActorUnavailable as error:
                if not repeatable or time.monotonic() > deadline:
                    raise TransportError(f"{method} may have been done or not: {error}") from error
                time.sleep(PAUSE_SECONDS)
            except ActorLost as error:
                raise TransportLost(f"the transport of run {self._run_id!r} is gone: {error}") from error

    def close(self) -> None:
        """Kills the server if it was started here; returns when its name is free for another.

        Raises:
            DeadlineExceeded: The cluster does not let go of it.
        """
        if not self._started or self._actor is None:
            return
        ray.kill(self._actor)
        self._actor, self._started = None, False
        deadline = time.monotonic() + CLOSE_SECONDS
        while time.monotonic() < deadline:
            try:
                find_actor(SERVER, self._run_id, CLOSE_SECONDS)
            except ActorLost:
                return
            time.sleep(PAUSE_SECONDS / 5)
        raise DeadlineExceeded(f"the transport of run {self._run_id!r} was killed, and is still there")

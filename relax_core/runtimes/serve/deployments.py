"""The Serve applications of a run, one for each front."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.api import RunTarget

from relax_core.runtimes.serve.assignment import Assignment, application_name
from relax_core.runtimes.serve.front import Front

HEALTH_CHECKS = 3
"""That a replica must fail in a row until Serve replaces it."""


def start_fronts(assignment: Assignment) -> list[str]:
    """Starts all applications at once, since a second call would restart every replica; returns their names."""
    targets = [
        RunTarget(_deployment(assignment, front), name=application_name(assignment.run_id, front), route_prefix=None)
        for front in assignment.fronts
    ]
    serve.run_many(targets)
    return [target.name for target in targets]


def stop_fronts(applications: Sequence[str], wait: bool = False) -> None:
    """Ends applications, whatever state they are in; returns at once, or when none of their processes is left."""
    for blocking in (False, True) if wait else (False,):
        for application in applications:
            with suppress(RayError, RuntimeError, TimeoutError):
                serve.delete(application, _blocking=blocking)


def _deployment(assignment: Assignment, front: str) -> Any:
    asked = assignment.config.run.serve.front(front)
    deployment: Any = serve.deployment(Front)
    deployment = deployment.options(
        num_replicas=asked.replicas,
        ray_actor_options={"num_cpus": asked.cpus},
        health_check_period_s=1.0,
        health_check_timeout_s=assignment.config.run.serve.rank_timeout / HEALTH_CHECKS,
        graceful_shutdown_timeout_s=1.0,
        graceful_shutdown_wait_loop_s=0.1,
    )
    return deployment.bind(assignment.run_id, front)

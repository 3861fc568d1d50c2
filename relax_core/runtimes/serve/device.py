"""A rank's device: planned by the controller, seen to be here by the rank."""

import ray
import torch

from relax_core.api.errors import RelaxError
from relax_core.runtimes.device import resolve_device
from relax_core.runtimes.serve.assignment import Assignment
from relax_core.runtimes.serve.process import prepare_process


def accelerators_of(device: str) -> int:
    """Accelerators that a rank on this device holds alone."""
    return 0 if torch.device(device).type == "cpu" else 1


def prepare_device(assignment: Assignment) -> None:
    """Prepares the process of a rank, sets its threads, and compares what it sees with the plan.

    Raises:
        RelaxError: See :func:`prepare_process`; or the rank sees another number of accelerators than were planned.
    """
    prepare_process(assignment, ray.get_runtime_context().get_actor_name() or "a rank")
    if assignment.config.run.threads:
        torch.set_num_threads(assignment.config.run.threads)
    planned = accelerators_of(resolve_device(assignment.device))
    visible = torch.accelerator.device_count() if planned else planned
    if visible != planned:
        raise RelaxError(f"device: this rank sees {visible} accelerators, {planned} were planned")

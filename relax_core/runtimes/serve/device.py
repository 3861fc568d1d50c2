"""A rank's device: planned by the controller, seen to be here by the rank."""

import torch

from relax_core.api.errors import RelaxError
from relax_core.runtimes.device import resolve_device
from relax_core.runtimes.serve.assignment import Assignment


def accelerators_of(device: str) -> int:
    """Accelerators that a rank on this device holds alone."""
    return 0 if torch.device(device).type == "cpu" else 1


def prepare_device(assignment: Assignment) -> None:
    """Sets the threads of this process, and compares what it sees with the plan.

    Raises:
        RelaxError: The rank sees another number of accelerators than were planned for it.
    """
    if assignment.config.run.threads:
        torch.set_num_threads(assignment.config.run.threads)
    planned = accelerators_of(resolve_device(assignment.device))
    visible = torch.accelerator.device_count() if planned else planned
    if visible != planned:
        raise RelaxError(f"device: this rank sees {visible} accelerators, {planned} were planned")

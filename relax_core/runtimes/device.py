"""The one place where a device is chosen."""

import torch

from relax_core.api.errors import ConfigError


def resolve_device(name: str) -> str:
    """``auto`` becomes the accelerator of this machine, or the CPU; a device that is not here is an error.

    Raises:
        ConfigError: torch has no such device.
    """
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return accelerator.type if accelerator is not None else "cpu"
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device: {name!r} cannot be used here: {reason}") from error
    return name

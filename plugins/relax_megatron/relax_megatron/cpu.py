"""Megatron-Core on a machine without CUDA. It names the device "cuda" in its own code; here that name means the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

CPU = torch.device("cpu")


def without_cuda() -> None:
    """Redirects what Megatron-Core 0.19 asks of CUDA, for this process; does nothing where there is CUDA.

    ``torch.cuda.is_available()`` keeps telling the truth.
    """
    if torch.cuda.is_available():
        return
    patches: dict[tuple[Any, str], Any] = {
        # Rotary frequencies, and buffers for what pipeline stages exchange, are made on "the current device".
        (torch.cuda, "current_device"): lambda: CPU,
        # After every exchange between stages; gloo's operations have ended when they were waited for.
        (torch.cuda, "synchronize"): lambda device=None: None,
        # The copy of a tied embedding on the last stage is moved "to the GPU" before it is filled.
        (torch.Tensor, "cuda"): lambda tensor, *_, **__: tensor,
        # Schedules count their tokens in torch.zeros(..., device="cuda").
        (torch, "zeros"): _on_cpu(torch.zeros),
    }
    for (owner, name), replacement in patches.items():
        setattr(owner, name, replacement)


def _on_cpu(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(function)
    def redirected(*arguments: Any, **settings: Any) -> torch.Tensor:
        if settings.get("device") == "cuda":
            settings["device"] = CPU
        return function(*arguments, **settings)

    return redirected

"""vLLM expects to own its process. Here it does not: what it needs around it, and what it must leave as it was."""

import logging
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from relax_core.api.errors import RelaxError

ENVIRONMENT = {
    # Weights are handed over by reference, and a step must end before the next update: no process of its own.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Nothing is reported to anybody unless the user wants it.
    "VLLM_NO_USAGE_STATS": "1",
    # A run logs by itself; vLLM's page per start would hide it.
    "VLLM_LOGGING_LEVEL": "WARNING",
}
CPU_ENVIRONMENT = {
    # vLLM would pin this process, trainer included, to cores, and keep one for a front end that does not exist here.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


RELOAD_LOGGER = "vllm.model_executor.model_loader.reload.layerwise"
"""Warns at every update about layers that have no weights of their own, such as a tied output layer. That all weights
arrive is verified before, and that they are used is what the mismatch probe is for."""


def prepare(device: torch.device) -> None:
    """Sets the environment, where the user has not, and imports vLLM.

    Raises:
        RelaxError: vLLM cannot be imported, is built for another device, or cannot run in this process.
    """
    for name, value in {**ENVIRONMENT, **(CPU_ENVIRONMENT if device.type == "cpu" else {})}.items():
        os.environ.setdefault(name, value)
    if os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] != "0":
        raise RelaxError("VLLM_ENABLE_V1_MULTIPROCESSING must be 0 or unset: the vllm engine runs in this process")
    if torch.distributed.is_initialized():
        raise RelaxError("a process holds one vllm engine, and nothing else that has set up torch.distributed")
    try:
        from vllm.platforms import current_platform

        if device.type == "cpu":
            # Else a few small kernels are compiled with g++ at the first request, which takes longer than a short run.
            # TORCH_COMPILE_DISABLE comes too late once torch is imported, and would be for the trainer as well.
            current_platform.simple_compile_backend = "eager"
        import vllm  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        raise RelaxError(
            f"vllm cannot be imported: {type(error).__name__}: {error}; without CUDA, torchvision, torchaudio and "
            "torchcodec must not be installed"
        ) from error
    logging.getLogger(RELOAD_LOGGER).setLevel(logging.ERROR)
    if current_platform.device_type != device.type:
        raise RelaxError(f"this build of vLLM computes on {current_platform.device_type!r}, not on {device.type!r}")


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Gives back the random states of torch, numpy and Python, and ``torch.set_num_threads``.

    vLLM seeds the former when it starts and draws from torch's at every step, whatever the seeds of its requests; the
    latter it replaces by a function that does nothing. What another thread draws meanwhile is taken back too.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    set_num_threads = torch.set_num_threads
    try:
        with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device], device_type=device.type):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_num_threads = set_num_threads

"""Registers the engine of this package."""

from relax_core import Component, hookimpl


@hookimpl
def relax_engines() -> list[Component]:
    """vLLM in process."""
    return [
        Component(
            "vllm",
            "relax_vllm.engine:VLLMEngine",
            "relax_vllm.config:VLLMEngineConfig",
            "vLLM in this process: continuous batching, weights in place.",
        )
    ]

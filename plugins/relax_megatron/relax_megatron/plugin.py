"""Registers the trainer of this package."""

from relax_core import Component, hookimpl


@hookimpl
def relax_trainers() -> list[Component]:
    """The Megatron-Core trainer."""
    return [
        Component(
            "megatron",
            "relax_megatron.trainer:MegatronTrainer",
            "relax_megatron.config:MegatronTrainerConfig",
            "Qwen3- and Llama-style models over many ranks: tensor, pipeline and data parallel.",
        )
    ]

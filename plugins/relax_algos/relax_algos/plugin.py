"""Registers the algorithms of this package."""

from relax_core import Component, hookimpl


@hookimpl
def relax_algorithms() -> list[Component]:
    """One entry per algorithm file."""
    return [
        Component(
            "grpo", "relax_algos.grpo:GRPO", "relax_algos.grpo:GRPOConfig", "Group-relative advantages, clipped ratio."
        ),
        Component("dpo", "relax_algos.dpo:DPO", "relax_algos.dpo:DPOConfig", "Preference pairs against a reference."),
        Component("sft", "relax_algos.sft:SFT", "relax_algos.sft:SFTConfig", "Supervised fine-tuning on labels."),
    ]

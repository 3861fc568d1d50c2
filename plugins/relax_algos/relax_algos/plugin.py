"""Registers the algorithms of this package."""

from relax_core import Component, hookimpl


@hookimpl
def relax_algorithms() -> list[Component]:
    """One entry per algorithm, by name."""
    return [
        _algorithm("cispo", "CISPO", "Group-relative advantages, clipped importance weights."),
        Component("dapo", "relax_algos.grpo:GRPO", "relax_algos.dapo:DAPOConfig", "GRPO, clipped higher."),
        _algorithm("dpo", "DPO", "Preference pairs against a reference."),
        Component("dr_grpo", "relax_algos.grpo:GRPO", "relax_algos.dr_grpo:DrGRPOConfig", "GRPO without two biases."),
        _algorithm("grpo", "GRPO", "Group-relative advantages, clipped ratio."),
        _algorithm("gspo", "GSPO", "Group-relative advantages, clipped ratio of answers."),
        _algorithm("m2po", "M2PO", "Group-relative advantages, a second-moment budget for old rows."),
        _algorithm("opd", "OPD", "Distillation of a teacher on the policy's own answers."),
        _algorithm("reinforce_plus_plus", "ReinforcePlusPlus", "Returns normalised over the batch."),
        _algorithm("reinforce_plus_plus_baseline", "ReinforcePlusPlusBaseline", "Group mean, batch deviation."),
        _algorithm("rloo", "RLOO", "Leave-one-out baseline, answers as single actions."),
        _algorithm("sapo", "SAPO", "Group-relative advantages, a smooth gate on the ratio."),
        _algorithm("sft", "SFT", "Supervised fine-tuning on labels."),
    ]


def _algorithm(name: str, algorithm: str, summary: str) -> Component:
    """An algorithm in a module of its name, next to its configuration."""
    return Component(name, f"relax_algos.{name}:{algorithm}", f"relax_algos.{name}:{algorithm}Config", summary)

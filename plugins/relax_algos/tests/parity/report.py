"""Prints the tables of docs/parity.md: every case, and how near the numbers are to those of the peer."""

from collections.abc import Sequence

import torch

from plugins.relax_algos.tests.parity.cases import ADVANTAGES, LOSSES, Case
from plugins.relax_algos.tests.parity.comparison import our_advantages, our_loss, their_loss
from plugins.relax_algos.tests.parity.update import later_update


def line(case: Case) -> str:
    """A case's line in its table, up to what was measured."""
    return f"| {case.peer} | `{case.option}` | `{case.ours}` |"


def loss_deviation(case: Case, dtype: torch.dtype) -> float:
    """Largest relative deviation of a loss, and of a gradient relative to the largest of its update."""
    deviations = [0.0]
    for update in (update.to(dtype) for update in case.updates().values()):
        ours, theirs = our_loss(case, update, [range(len(update.trained))]), their_loss(case, update)
        deviations.append(((ours.loss - theirs.loss) / theirs.loss).abs().item())
        deviations.append(((ours.gradient - theirs.gradient).abs().max() / theirs.gradient.abs().max()).item())
    return max(deviations)


def advantage_deviation(case: Case) -> float:
    """Largest deviation, relative to the largest advantage."""
    theirs = case.theirs(later_update())
    return ((our_advantages(case, later_update()) - theirs).abs().max() / theirs.abs().max()).item()


def table(columns: Sequence[str], lines: Sequence[str]) -> str:
    """A table in Markdown."""
    return "\n".join([f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}", *lines])


if __name__ == "__main__":
    precisions = (torch.float64, torch.float32)
    losses = [
        f"{line(case)} {' | '.join(f'{loss_deviation(case, each):.0e}' for each in precisions)} |" for case in LOSSES
    ]
    print(table(["peer", "its options", "Relax", "float64", "float32"], losses), end="\n\n")
    advantages = [f"{line(case)} {advantage_deviation(case):.0e} |" for case in ADVANTAGES]
    print(table(["peer", "its options", "Relax", "float64"], advantages))

"""Gradients of data-parallel ranks become one: their sum, the same bits on every rank."""

from collections.abc import Sequence

import torch
import torch.distributed
from torch import Tensor


def sum_gradients(masters: Sequence[Tensor]) -> None:
    """Replaces each gradient by its sum over the ranks of the default process group, in one all-reduce.

    A rank without rows, or a parameter that no row of a rank reached, counts as zero; a parameter without a gradient on
    every rank stays without, so that the optimizer does not touch it.

    Args:
        masters: float32, in the same order on every rank.
    """
    gradients = [torch.zeros_like(master) if master.grad is None else master.grad for master in masters]
    present = torch.tensor([float(master.grad is not None) for master in masters], device=masters[0].device)
    flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), present])
    torch.distributed.all_reduce(flat)
    *sums, present = flat.split([*(gradient.numel() for gradient in gradients), len(masters)])
    for master, summed, ranks in zip(masters, sums, present.tolist(), strict=True):
        master.grad = summed.view_as(master) if ranks else None

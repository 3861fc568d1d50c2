"""Gradients of data-parallel ranks become one: their sum, the same bits on every rank."""

import torch
import torch.distributed
from torch import Tensor

from relax_core.trainers.optimizer import MasterOptimizer


class DataParallelOptimizer(MasterOptimizer):
    """Each rank of the default process group has the whole model; all call ``apply`` together."""

    def reduce(self) -> dict[str, Tensor]:
        """Replaces each gradient by its sum over the ranks, in one all-reduce.

        A rank without rows, or a parameter that no row of a rank reached, counts as zero; a parameter without a
        gradient on every rank stays without, so that the optimizer does not touch it.
        """
        masters = list(self.masters.values())
        gradients = [torch.zeros_like(master) if master.grad is None else master.grad for master in masters]
        present = torch.tensor([float(master.grad is not None) for master in masters], device=masters[0].device)
        flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), present])
        torch.distributed.all_reduce(flat)
        *sums, present = flat.split([*(gradient.numel() for gradient in gradients), len(masters)])
        for master, summed, ranks in zip(masters, sums, present.tolist(), strict=True):
            master.grad = summed.view_as(master) if ranks else None
        return super().reduce()

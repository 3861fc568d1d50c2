"""The optimizer of one rank: AdamW on its own part of the parameters, after gradients and norm are made global.

It is the embedded trainer's optimizer and not Megatron's: the same schedule, masters, clipping and skipping, so that a
run does not change with its backend. Megatron's clips by a norm that drifts from PyTorch's by 5e-5 within three
updates, and its gradient buffers are reduced at the end of every pass, while here gradients of any number of passes add
up before one ``apply``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor, nn

from relax_core.config import TrainerConfig
from relax_core.trainers.optimizer import MasterOptimizer
from relax_megatron.conversion import Parameter


class ShardedOptimizer(MasterOptimizer):
    """All ranks call its methods together.

    Args:
        config: Learning rate, clipping and the rest.
        parameters: The model's own, by Megatron-Core's names.
        masters: float32, same names; see :class:`MasterOptimizer`.
        entries: By the same names: which parameters are cut, partial or copies.
    """

    def __init__(
        self,
        config: TrainerConfig,
        parameters: Mapping[str, nn.Parameter],
        masters: Mapping[str, Tensor],
        entries: Mapping[str, Parameter],
    ) -> None:
        super().__init__(config, parameters, masters)
        self.entries = entries

    def reduce(self) -> dict[str, Tensor]:
        """Adds up what ranks hold of one gradient: heads of a norm, ends of a tied embedding, copies of the model."""
        if not self._anywhere():
            return {}
        gradients = {}
        for name, master in self.masters.items():
            if master.grad is None:
                master.grad = torch.zeros_like(master)
            gradients[name] = master.grad
            if self.entries[name].partial:
                dist.all_reduce(master.grad, group=parallel_state.get_tensor_model_parallel_group())
            if getattr(self.parameters[name], "shared_embedding", False):
                dist.all_reduce(master.grad, group=parallel_state.get_embedding_group())
            dist.all_reduce(master.grad, group=parallel_state.get_data_parallel_group())
        return gradients

    def _anywhere(self) -> bool:
        """Whether any rank has a gradient; a data-parallel copy may have had no rows."""
        device = next(iter(self.masters.values())).device
        found = torch.tensor(float(any(each.grad is not None for each in self.masters.values())), device=device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return bool(found)

    def total_norm(self, gradients: Mapping[str, Tensor]) -> float:
        """Over every parameter of the model, each counted once."""
        first = parallel_state.get_tensor_model_parallel_rank() == 0
        own = [
            gradient
            for name, gradient in gradients.items()
            if not self.entries[name].copy and (first or self.entries[name].cut is not None)
        ]
        square = nn.utils.get_total_norm(own).double().square()
        dist.all_reduce(square, group=parallel_state.get_model_parallel_group())
        return math.sqrt(square)

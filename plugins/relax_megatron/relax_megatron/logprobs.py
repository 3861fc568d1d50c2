"""Log-probabilities and entropies of N tokens when each rank has the logits of a part of the vocabulary, in float32.

The formulas are those of :mod:`relax_core.trainers.torch.logprobs`. Sums over the vocabulary are sums over the ranks;
with the normaliser and the entropy known to all, each rank computes the gradient of its own logits alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from relax_core.trainers.support import EXCLUDED, Support


@dataclass(frozen=True)
class Slice:
    """The part of the vocabulary that a rank holds.

    Args:
        start: First id.
        end: One past the last id; not beyond the vocabulary, which the logits may be padded to.
        group: The tensor-parallel ranks.
    """

    start: int
    end: int
    group: Any

    def support(self, support: Support) -> Support:
        """The allowed ids of this part, counted from its start."""
        inside = (support.ids >= self.start) & (support.ids < self.end)
        tokens = support.tokens[inside]
        counts = np.bincount(tokens.cpu().numpy(), minlength=len(support.offsets) - 1)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        return Support(tokens, support.ids[inside] - self.start, offsets)


def parallel_logprobs(
    logits: Tensor, targets: Tensor, vocabulary: Slice, temperature: float, support: Support | None
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies, float32 ``[N]`` each, the same on every rank of the group.

    Args:
        logits: ``[N, V / ranks]`` of this rank's ids, padding at the end.
        targets: int64 ``[N]``: the tokens, as ids of the whole vocabulary.
        vocabulary: This rank's part.
        temperature: Divides the logits.
        support: Ids the tokens could have been drawn from; ``None``: all.
    """
    warped = logits.float() if temperature == 1 else logits.float() / temperature
    if support is not None:
        warped = vocabulary.support(support).restrict(warped, 0)
    padding = torch.arange(warped.shape[1], device=warped.device) >= vocabulary.end - vocabulary.start
    if padding.any():
        warped = warped.masked_fill(padding, EXCLUDED)
    logprobs, entropy = _ParallelLogprobs.apply(warped, targets, vocabulary)
    return logprobs, entropy


class _ParallelLogprobs(torch.autograd.Function):
    """From float32 logits that are already divided and restricted."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, vocabulary: Slice) -> tuple[Tensor, Tensor]:
        largest = logits.amax(-1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, vocabulary.group)
        exponentials = (logits - largest[:, None]).exp_()
        own = (targets >= vocabulary.start) & (targets < vocabulary.end)
        places = torch.where(own, targets - vocabulary.start, 0)[:, None]
        chosen = torch.where(own, logits.gather(-1, places)[:, 0], 0.0)
        sums = torch.stack([chosen, exponentials.sum(-1), exponentials.mul_(logits).sum(-1)])
        dist.all_reduce(sums, dist.ReduceOp.SUM, vocabulary.group)
        chosen, total, expected = sums
        normaliser = total.log() + largest
        entropy = normaliser - expected / total
        ctx.save_for_backward(logits, normaliser, entropy, places, own)
        ctx.set_materialize_grads(False)
        return chosen - normaliser, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_logprob: Tensor | None, by_entropy: Tensor | None) -> tuple[Tensor, None, None]:
        logits, normaliser, entropy, places, own = ctx.saved_tensors
        log_p = logits - normaliser[:, None]
        slope = torch.zeros_like(normaliser)[:, None] if by_logprob is None else by_logprob[:, None]
        if by_entropy is not None:
            slope = slope + by_entropy[:, None] * (log_p + entropy[:, None])
        to_logits = log_p.exp_().mul_(-slope)
        if by_logprob is not None:
            to_logits.scatter_add_(-1, places, (by_logprob * own)[:, None])
        return to_logits, None, None

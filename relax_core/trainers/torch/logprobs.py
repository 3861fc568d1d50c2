"""Log-probabilities and entropies of N tokens over a vocabulary of V, in float32 whatever the model computes in.

With z the logits divided by the temperature and p = softmax(z):

    log p(y) = z_y − log Σ exp z        d log p(y) / dz_j = [j = y] − p_j
    H = −Σ p log p                      d H / dz_j = −p_j (log p_j + H)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from relax_core.trainers.support import EXCLUDED, Support

LOGITS_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Sampling:
    """How the tokens were drawn, so that their probabilities mean the same here.

    Args:
        targets: int64 ``[N]``: the tokens.
        temperature: Divides the logits.
        support: Ids they could have been drawn from; ``None``: all.
        excluded: int64 ``[E]``: ids that are never drawn; ``None``: none.
    """

    targets: Tensor
    temperature: float = 1.0
    support: Support | None = None
    excluded: Tensor | None = None

    def warp(self, logits: Tensor, start: int = 0) -> Tensor:
        """float32 logits of the tokens from ``start`` on, divided and restricted as at sampling."""
        warped = logits.float() if self.temperature == 1 else logits.float() / self.temperature
        if self.excluded is not None:
            warped = warped.index_fill(-1, self.excluded, EXCLUDED)
        return warped if self.support is None else self.support.restrict(warped, start)


def logprobs_from_logits(logits: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies, ``[N]`` each, from the model's own logits ``[N, V]``, held whole."""
    distribution = sampling.warp(logits).log_softmax(-1)
    chosen = distribution.gather(-1, sampling.targets[:, None])[:, 0]
    return chosen, -(distribution.exp() * distribution).sum(-1)


def logprobs_from_hidden(
    hidden: Tensor, head: torch.nn.Linear, sampling: Sampling, chunk_tokens: int | None
) -> tuple[Tensor, Tensor]:
    """The same from hidden states ``[N, H]`` and the output layer, logits being held for ``chunk_tokens`` at a time.

    Args:
        hidden: Model states that predict the tokens, in the compute dtype.
        head: ``[V, H]`` output layer.
        sampling: The tokens and how they were drawn.
        chunk_tokens: ``None``: as many as keep the float32 logits within ``LOGITS_BYTES``; 0: all.
    """
    if chunk_tokens is None:
        chunk_tokens = max(1, LOGITS_BYTES // (4 * head.out_features))
    logprobs, entropy = _ChunkedLogprobs.apply(hidden, head.weight, head.bias, sampling, chunk_tokens or len(hidden))
    return logprobs, entropy


class _ChunkedLogprobs(torch.autograd.Function):
    """Computes logits chunk by chunk, and again in the backward pass; a single chunk is kept instead."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, sampling: Sampling, chunk: int
    ) -> tuple[Tensor, Tensor]:
        chosen, normaliser, entropy = (hidden.new_empty(len(hidden), dtype=torch.float32) for _ in range(3))
        for part in _chunks(len(hidden), chunk):
            logits = sampling.warp(functional.linear(hidden[part], weight, bias), part.start)
            largest = logits.amax(-1, keepdim=True)
            exponentials = (logits - largest).exp_()
            total = exponentials.sum(-1)
            normaliser[part] = total.log() + largest[:, 0]
            chosen[part] = logits.gather(-1, sampling.targets[part, None])[:, 0]
            entropy[part] = normaliser[part] - exponentials.mul_(logits).sum(-1) / total
        ctx.save_for_backward(hidden, weight, bias, normaliser, entropy)
        ctx.sampling, ctx.chunk = sampling, chunk
        ctx.kept = logits if chunk >= len(hidden) else None
        ctx.set_materialize_grads(False)
        return chosen - normaliser, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        hidden, weight, bias, normaliser, entropy = ctx.saved_tensors
        sampling: Sampling = ctx.sampling
        by_logprob, by_entropy = (None if each is None else each / sampling.temperature for each in gradients)
        if by_logprob is None:
            by_logprob = torch.zeros_like(normaliser)
        to_hidden = torch.empty_like(hidden)
        to_weight = torch.zeros_like(weight, dtype=torch.float32)
        to_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        for part in _chunks(len(hidden), ctx.chunk):
            logits = ctx.kept
            if logits is None:
                logits = sampling.warp(functional.linear(hidden[part], weight, bias), part.start)
            log_p = logits - normaliser[part, None]
            slope = by_logprob[part, None]
            if by_entropy is not None:
                slope = slope + by_entropy[part, None] * (log_p + entropy[part, None])
            to_logits = log_p.exp_().mul_(-slope)
            to_logits.scatter_add_(-1, sampling.targets[part, None], by_logprob[part, None])
            to_logits = to_logits.to(hidden.dtype)
            torch.mm(to_logits, weight, out=to_hidden[part])
            to_weight += to_logits.T @ hidden[part]
            if to_bias is not None:
                to_bias += to_logits.sum(0)
        return to_hidden, to_weight.to(weight.dtype), None if to_bias is None else to_bias.to(bias.dtype), None, None


def _chunks(total: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, total)) for start in range(0, total, size))

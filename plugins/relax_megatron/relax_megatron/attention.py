"""Causal attention of rows padded on the right, by PyTorch's fused kernel, for Megatron-Core's layer specification.

Megatron-Core's own unfused attention builds the full matrix of scores and a copy of keys and values per query head;
its fused one needs Transformer Engine. No token sees the padding behind it, so a causal mask is all there is.
"""

from __future__ import annotations

from typing import Any

from megatron.core.transformer.module import MegatronModule
from torch import Tensor
from torch.nn import functional


class CausalAttention(MegatronModule):
    """The ``core_attention`` of a layer: heads of this rank only, no dropout."""

    def __init__(self, config: Any, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__(config=config)
        self.scale = softmax_scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        """``[length, rows, heads, width]``, key and value with fewer heads -> ``[length, rows, heads · width]``."""
        query, key, value = (each.permute(1, 2, 0, 3) for each in (query, key, value))
        grouped = query.shape[1] != key.shape[1]
        output = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=self.scale, enable_gqa=grouped
        )
        return output.permute(2, 0, 1, 3).flatten(2)

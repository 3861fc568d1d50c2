"""A key-value cache that grows without copying everything at every token."""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class GrowingLayer(DynamicLayer):
    """Keys and values of one layer of full attention, ``[rows, heads, tokens, head size]``, with room for more tokens.

    transformers' own layer concatenates at every token, which costs as much as attention itself once texts are long.
    """

    keys: Any
    values: Any

    def __init__(self) -> None:
        super().__init__()
        self._tokens = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Adds the states of some tokens; returns those of all."""
        start, self._tokens = self._tokens, self._tokens + key_states.shape[-2]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states, value_states
        elif self._tokens <= self.keys.shape[-2]:
            self.keys[:, :, start : self._tokens] = key_states
            self.values[:, :, start : self._tokens] = value_states
        else:
            self.keys = _with_room(self.keys[:, :, :start], key_states)
            self.values = _with_room(self.values[:, :, :start], value_states)
        return self.keys[:, :, : self._tokens], self.values[:, :, : self._tokens]

    def get_seq_length(self) -> int:
        """Tokens that are cached."""
        return self._tokens

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Selects rows, with repetition."""
        self.keys = self.keys[:, :, : self._tokens].index_select(0, beam_idx)
        self.values = self.values[:, :, : self._tokens].index_select(0, beam_idx)


def growing_cache(config: Any) -> DynamicCache:
    """transformers' cache for a model's kinds of layers, with :class:`GrowingLayer` for full attention."""
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def _with_room(states: Tensor, more: Tensor) -> Tensor:
    """Both, and room for an eighth more: none in short texts, where attention over a part costs more than copying."""
    room = (states.shape[-2] + more.shape[-2]) // 8
    return torch.cat([states, more, more.new_empty((*more.shape[:2], room, more.shape[3]))], dim=-2)

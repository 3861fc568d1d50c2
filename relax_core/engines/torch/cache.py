"""A key-value cache in which rows come and go while all of them grow."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

ROOM = 8
"""A buffer that must be moved gets an eighth more rows and tokens than are needed: none where there are few, since
attention over a part of a buffer costs more than copying a short one."""


class GrowingLayer(DynamicLayer):
    """Keys and values of one layer of full attention, ``[rows, heads, tokens, head size]``, in buffers with room.

    All rows end with the newest token. What lies before the first token of a shorter row is zero or stems from the row
    itself, so that a row whose numbers are not finite spoils no other; a mask must hide it.
    transformers' own layer copies everything at every token, and whenever a row leaves.
    """

    keys: Any
    values: Any

    def __init__(self) -> None:
        super().__init__()
        self._rows = self._start = self._end = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Adds the states of some tokens to every row; returns those of all."""
        more = key_states.shape[-2]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states, value_states
            self._rows, self._end = key_states.shape[0], more
            self._reserve(self._rows, more, 1)
            return key_states, value_states
        self._reserve(self._rows, self.get_seq_length(), more)
        self.keys[: self._rows, :, self._end : self._end + more] = key_states
        self.values[: self._rows, :, self._end : self._end + more] = value_states
        self._end += more
        return self._present(self.keys), self._present(self.values)

    def get_seq_length(self) -> int:
        """Tokens of the longest row."""
        return self._end - self._start

    def select(self, rows: int, targets: Tensor, sources: Tensor) -> None:
        """Copies rows ``sources`` over ``targets`` and keeps the first ``rows``; all others stay where they are."""
        self._reserve(max(rows, self._rows), self.get_seq_length(), 0)
        for states in (self.keys, self.values):
            present = states[:, :, self._start : self._end]
            present.index_copy_(0, targets, present.index_select(0, sources))
        self._rows = rows

    def join(self, other: "GrowingLayer") -> None:
        """Adds the rows of another layer after the own ones."""
        tokens = max(self.get_seq_length(), other.get_seq_length())
        rows = self._rows + other._rows
        self._reserve(rows, tokens, 1)
        start, begin = self._end - tokens, self._end - other.get_seq_length()
        for states, others in ((self.keys, other.keys), (self.values, other.values)):
            states[: self._rows, :, start : self._start] = 0
            states[self._rows : rows, :, start:begin] = 0
            states[self._rows : rows, :, begin : self._end] = other._present(others)
        self._rows, self._start = rows, start

    def trim(self, tokens: int) -> None:
        """Forgets all but the newest tokens."""
        self._start = self._end - tokens

    def _present(self, states: Tensor) -> Tensor:
        return states[: self._rows, :, self._start : self._end]

    def _reserve(self, rows: int, before: int, after: int) -> None:
        """Moves to larger buffers, unless ``rows`` find room, ``before`` tokens up to the newest, and more after it."""
        if rows <= self.keys.shape[0] and before <= self._end and self._end + after <= self.keys.shape[2]:
            return
        tokens = before + max(after, 1)
        shape = (rows + rows // ROOM, tokens + tokens // ROOM)
        self.keys, self.values = (self._moved(states, shape, before) for states in (self.keys, self.values))
        self._start, self._end = before - self.get_seq_length(), before

    def _moved(self, states: Tensor, shape: tuple[int, int], end: int) -> Tensor:
        rows, tokens = shape
        moved = states.new_empty((rows, states.shape[1], tokens, states.shape[3]))
        moved[: self._rows, :, end - self.get_seq_length() : end] = self._present(states)
        return moved


class GrowingCache(DynamicCache):
    """transformers' cache for a model's kinds of layers, with :class:`GrowingLayer` for full attention.

    Args:
        config: The model's.
    """

    layers: list[Any]

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in self.layers]

    @property
    def joinable(self) -> bool:
        """Whether rows can be added: not where a layer keeps a window or a state instead of all tokens."""
        return all(isinstance(layer, GrowingLayer) for layer in self.layers)

    def select(self, sources: Sequence[int], device: torch.device) -> None:
        """Row i becomes a copy of what row ``sources[i]`` was; there are as many rows as sources."""
        moved = [row for row, source in enumerate(sources) if row != source]
        targets = torch.tensor(moved, dtype=torch.long, device=device)
        every = torch.tensor(sources, device=device)
        for layer in self.layers:
            if isinstance(layer, GrowingLayer):
                layer.select(len(sources), targets, every[targets])
            else:
                # named after beam search; it is a selection of rows, with repetition, for every kind of layer
                layer.reorder_cache(every)

    def join(self, other: "GrowingCache") -> None:
        """Adds the rows of another cache after the own ones; both :attr:`joinable`."""
        for layer, others in zip(self.layers, other.layers, strict=True):
            layer.join(others)

    def trim(self, tokens: int) -> None:
        """Forgets all but the newest tokens of a :attr:`joinable` cache."""
        for layer in self.layers:
            layer.trim(tokens)

"""Keys and values of distinct token sequences that grow together, one token a step."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relax_core.engines.torch.cache import growing_cache
from relax_core.engines.torch.model import CausalModel

PADDING_ID = 0
"""Any id the model can embed; the mask hides it."""


class Decoder:
    """A tree of sequences, of which only the leaves are kept.

    Each leaf is computed once, however many trajectories run through it: a prompt that a group shares, and the tokens
    on which members of the group still agree.

    Args:
        model: Computes.
        sequences: Distinct and not empty; computed at once, padded on the left.
    """

    def __init__(self, model: CausalModel, sequences: Sequence[Sequence[int]]) -> None:
        self._model = model
        self._cache: Any = growing_cache(model.network.config)
        longest = max(map(len, sequences))
        padding = [longest - len(sequence) for sequence in sequences]
        rows = [[PADDING_ID] * pad + list(sequence) for pad, sequence in zip(padding, sequences, strict=True)]
        token_ids = torch.tensor(rows, device=model.device)
        first = torch.tensor(padding, device=model.device)[:, None]
        places = torch.arange(longest, device=model.device)[None]
        self._mask = (places >= first).long() if any(padding) else None
        self._next_position = longest - first
        positions = (places - first).clamp(min=0)
        self.logits = model.next_logits(token_ids, self._mask, positions, self._cache)
        """float32 ``[leaves, vocabulary]``: of the token after each leaf."""

    def extend(self, parents: Sequence[int], token_ids: Sequence[int]) -> None:
        """Replaces the leaves: new leaf i is old leaf ``parents[i]`` followed by ``token_ids[i]``.

        Old leaves that are nobody's parent are given up.
        """
        if list(parents) != list(range(len(self._next_position))):
            self._select(torch.tensor(parents, device=self._model.device))
        tokens = torch.tensor(token_ids, device=self._model.device)[:, None]
        if self._mask is not None:
            self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        self.logits = self._model.next_logits(tokens, self._mask, self._next_position, self._cache)
        self._next_position = self._next_position + 1

    def _select(self, parents: Tensor) -> None:
        # transformers names it after beam search; it is a selection of rows, with repetition, for every kind of layer
        self._cache.reorder_cache(parents)
        self._next_position = self._next_position[parents]
        if self._mask is not None:
            self._mask = self._mask[parents]

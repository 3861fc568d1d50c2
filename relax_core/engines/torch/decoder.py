"""Keys and values of distinct token sequences that grow together, one token a step."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from relax_core.api.media import Encoded
from relax_core.engines.torch.cache import GrowingCache
from relax_core.engines.torch.model import CausalModel

PREFILL_TOKENS = 2**14
"""Tokens that are computed at once when sequences enter, padding included; bounds what the model's layers hold."""


class Decoder:
    """A forest of sequences, of which only the leaves are kept, each in a row of the cache.

    Each leaf is computed once, however many trajectories run through it: a prompt that a group shares, and the tokens
    on which members of the group still agree. Rows are aligned at their newest token; when the longest is given up,
    the padding before the others goes with it.

    Args:
        model: Computes.
    """

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self._cache = GrowingCache(model.network.config)
        self._lengths: list[int] = []
        self._ahead: list[float] = []
        """Of each leaf, how far its next token stands ahead of its number; see :class:`Places`."""
        self._columns = 0
        self.logits = torch.empty(0, model.vocabulary, device=model.device)
        """float32 ``[leaves, vocabulary]``: of the token after each leaf."""

    @property
    def open(self) -> bool:
        """Whether leaves can be added. Beside others they cannot where layers keep a window or a state of the past."""
        return not self._lengths or self._cache.joinable

    def add(
        self, sequences: Sequence[Sequence[int]], media: Mapping[int, Sequence[Encoded]] | None = None
    ) -> list[int]:
        """Adds leaves; the others stay in their rows.

        Args:
            sequences: Distinct, by their tokens and media, and not empty.
            media: Of those sequences that have any, by index.

        Returns:
            The row of each.
        """
        rows, media = [0] * len(sequences), media or {}
        parts = _parts(list(map(len, sequences))) if self._cache.joinable else [list(range(len(sequences)))]
        for part in parts:
            for row, index in enumerate(part, len(self._lengths)):
                rows[index] = row
            of_part = {row: media[index] for row, index in enumerate(part) if index in media}
            self._prefill([sequences[index] for index in part], of_part)
        return rows

    def extend(self, parents: Sequence[int], token_ids: Sequence[int]) -> list[int]:
        """Replaces the leaves by ``token_ids[i]`` after the leaf in row ``parents[i]``, at least one.

        Leaves that are nobody's parent are given up.

        Returns:
            The row of each new leaf: its parent's, where possible, so that little is copied.
        """
        rows = placed(parents)
        in_rows = sorted(zip(rows, parents, token_ids, strict=True))
        sources = [parent for _, parent, _ in in_rows]
        if sources != list(range(len(self._lengths))):
            self._select(sources)
        tokens = torch.tensor([[token_id] for _, _, token_id in in_rows], device=self._model.device)
        lengths = torch.tensor(self._lengths, device=self._model.device)[:, None]
        positions = lengths
        if any(self._ahead):
            positions = lengths + torch.tensor(self._ahead, device=self._model.device)[:, None]
        self._lengths = [length + 1 for length in self._lengths]
        self._columns += 1
        mask = _mask(lengths + 1, self._columns) if self._ragged else None
        self.logits = self._model.next_logits(tokens, mask, positions, self._cache)
        return rows

    @property
    def _ragged(self) -> bool:
        return min(self._lengths) < self._columns

    def _select(self, sources: Sequence[int]) -> None:
        self._cache.select(sources, self._model.device)
        self._lengths = [self._lengths[source] for source in sources]
        self._ahead = [self._ahead[source] for source in sources]
        if self._cache.joinable:
            self._columns = max(self._lengths)
            self._cache.trim(self._columns)

    def _prefill(self, sequences: Sequence[Sequence[int]], media: Mapping[int, Sequence[Encoded]]) -> None:
        lengths = list(map(len, sequences))
        longest = max(lengths)
        # padded with a token of its own, a sequence whose numbers are not finite spoils no other
        padded = [[self._padding(sequence)] * (longest - len(sequence)) + list(sequence) for sequence in sequences]
        ends = torch.tensor(lengths, device=self._model.device)[:, None]
        mask = _mask(ends, longest)
        positions = (torch.arange(longest, device=self._model.device) - longest + ends).clamp(min=0)
        positions, ahead, arguments = self._with_media(sequences, media, positions)
        cache = GrowingCache(self._model.network.config) if self._lengths else self._cache
        logits = self._model.next_logits(
            torch.tensor(padded, device=self._model.device),
            mask if min(lengths) < longest else None,
            positions,
            cache,
            arguments,
        )
        if cache is not self._cache:
            self._cache.join(cache)
        self.logits = torch.cat([self.logits, logits]) if self._lengths else logits
        self._lengths += lengths
        self._ahead += ahead
        self._columns = max(self._columns, longest)

    def _padding(self, sequence: Sequence[int]) -> int:
        inputs = self._model.media
        return sequence[0] if inputs is None else inputs.text_of(sequence)

    def _with_media(
        self, sequences: Sequence[Sequence[int]], media: Mapping[int, Sequence[Encoded]], positions: Tensor
    ) -> tuple[Tensor, list[float], Mapping[str, Tensor]]:
        """Positions of sequences, of which some have media, and :attr:`_ahead`; and what is seen and heard there."""
        ahead: list[float] = [0] * len(sequences)
        if not media:
            return positions, ahead, {}
        inputs = self._model.media
        assert inputs is not None, "a request with media is refused by a model of text"
        rows = sorted(media)
        arguments = inputs.arguments([each for row in rows for each in media[row]])
        places = inputs.places([sequences[row] for row in rows], arguments)
        positions = positions.to(places[0].begin.dtype).expand(3, -1, -1).clone()
        for row, place in zip(rows, places, strict=True):
            length = len(sequences[row])
            positions[:, row, positions.shape[-1] - length :] = place.of(length).to(positions.device)
            ahead[row] = place.ahead
        return positions, ahead, arguments


def _mask(lengths: Tensor, columns: int) -> Tensor:
    """int64 ``[n, columns]``: 1 for the last ``lengths[i]``, int64 ``[n, 1]``."""
    return (torch.arange(columns, device=lengths.device) >= columns - lengths).long()


def placed(parents: Sequence[int]) -> list[int]:
    """Rows for children, out of the first as many: the first child of a parent stays in its row, if that is kept."""
    count = len(parents)
    owners: dict[int, int] = {}
    for child, parent in enumerate(parents):
        if parent < count:
            owners.setdefault(parent, child)
    free = iter(row for row in range(count) if row not in owners)
    return [parent if owners.get(parent) == child else next(free) for child, parent in enumerate(parents)]


def _parts(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices in order of length, as many together as ``PREFILL_TOKENS`` allow with padding."""
    part: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if part and (len(part) + 1) * lengths[index] > PREFILL_TOKENS:
            yield part
            part = []
        part.append(index)
    yield part

"""Decoding in which no bit of a sequence depends on which others are decoded with it.

Measured with torch 2.13 on x86 (MKL, AVX-512), on one thread: a row of a matrix product is the same, to the last bit,
whatever the other rows are and wherever it stands, if there are at least four; on two threads, if there are ten. A
query's attention is the same whatever the number of masked keys behind its own, if the number of all is a multiple of
sixteen; not if they stand before its own, beyond 512, and on two threads it depends on which of them computes it. So
everything here comes in sixteens, on one thread, and a row's keys begin in the first column. A prompt that is computed
at once has other bits than its tokens have one by one, which is how they must be computed when a request goes on from
some of them: every token has a step of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from relax_core.api.errors import ConfigError
from relax_core.api.media import Encoded
from relax_core.engines.torch.decoder import placed
from relax_core.engines.torch.model import CausalModel

TILE = 16
"""Rows and columns come in multiples of it."""


class StepwiseDecoder:
    """As :class:`relax_core.engines.torch.decoder.Decoder`, but for its bits and its price.

    Args:
        model: Computes. Its layers attend to all tokens; see :func:`check_deterministic`.
    """

    open = True

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self._cache = TiledCache(model.network.config)
        self._lengths: list[int] = []
        self.logits = torch.empty(0, model.vocabulary, device=model.device)
        """float32 ``[leaves, vocabulary]``: of the token after each leaf."""

    def add(
        self, sequences: Sequence[Sequence[int]], media: Mapping[int, Sequence[Encoded]] | None = None
    ) -> list[int]:
        """Adds leaves, none with media; the others stay in their rows. Returns the row of each."""
        assert not media, "an engine with encoders is refused"
        first, count = len(self._lengths), len(sequences)
        # The longest come first, so that those which go on are always together.
        order = sorted(range(count), key=lambda index: -len(sequences[index]))
        self._cache.clear(first, _tiled(count), self._model.device)
        self._lengths += [0] * count
        logits = torch.empty(count, self._model.vocabulary, device=self._model.device)
        for place in range(len(sequences[order[0]])):
            going_on = [sequences[index][place] for index in order if len(sequences[index]) > place]
            logits[: len(going_on)] = self._step(first, going_on)
        self.logits = torch.cat([self.logits, logits])
        rows = {index: first + row for row, index in enumerate(order)}
        return [rows[index] for index in range(count)]

    def extend(self, parents: Sequence[int], token_ids: Sequence[int]) -> list[int]:
        """Replaces the leaves by ``token_ids[i]`` after the leaf in row ``parents[i]``, at least one.

        Returns:
            The row of each new leaf.
        """
        rows = placed(parents)
        in_rows = sorted(zip(rows, parents, token_ids, strict=True))
        sources = [parent for _, parent, _ in in_rows]
        self._cache.select(sources, self._model.device)
        self._lengths = [self._lengths[source] for source in sources]
        self.logits = self._step(0, [token_id for _, _, token_id in in_rows])
        return rows

    def _step(self, first: int, token_ids: Sequence[int]) -> Tensor:
        """Logits after one more token in each of some rows; what makes the tile full is thrown away."""
        count = len(token_ids)
        rows = _tiled(count)
        lengths = self._lengths[first : first + rows]
        lengths += [0] * (rows - len(lengths))
        places = torch.tensor(lengths, device=self._model.device)[:, None]
        # A column that every row masks: without a mask transformers would attend in another way.
        columns = _tiled(max(lengths) + 2)
        self._cache.aim(first, places[:, 0], columns)
        tokens = torch.tensor([*token_ids, *[0] * (rows - count)], device=self._model.device)[:, None]
        mask = (torch.arange(columns, device=self._model.device) <= places).long()
        logits = self._model.next_logits(tokens, mask, places, self._cache)
        for row in range(first, first + count):
            self._lengths[row] += 1
        return logits[:count]


class TiledLayer(DynamicLayer):
    """Keys and values of one layer, ``[rows, heads, columns, head size]``: token i of a row stands in column i."""

    keys: Any
    values: Any

    def __init__(self) -> None:
        super().__init__()
        self.first = self.columns = 0
        self.places = torch.empty(0, dtype=torch.long)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Puts the states of one token of each row in its place; returns those of the rows, masked columns included."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = (states.new_empty(0, *states.shape[1:]) for states in (key_states, value_states))
        rows = slice(self.first, self.first + len(self.places))
        self.reserve(rows.stop, self.columns)
        every = torch.arange(len(self.places), device=self.places.device)
        present = []
        for states, new in ((self.keys, key_states), (self.values, value_states)):
            aimed = states[rows, :, : self.columns]
            aimed[every, :, self.places] = new[:, :, 0]
            present.append(aimed)
        return present[0], present[1]

    def get_seq_length(self) -> int:
        """Columns before the one in which transformers takes the new token to be: the last."""
        return self.columns - 1

    def clear(self, first: int, rows: int) -> None:
        """Zeroes some rows: what is masked must be finite too."""
        if self.is_initialized:
            self.reserve(first + rows, 0)
            self.keys[first : first + rows] = 0
            self.values[first : first + rows] = 0

    def select(self, targets: Tensor, sources: Tensor) -> None:
        """Copies rows ``sources`` over ``targets``."""
        if len(targets):
            self.reserve(int(targets.max()) + 1, 0)
            for states in (self.keys, self.values):
                states.index_copy_(0, targets, states.index_select(0, sources))

    def reserve(self, rows: int, columns: int) -> None:
        """Moves to larger buffers, unless rows and columns find room."""
        shape = self.keys.shape
        if rows > shape[0] or columns > shape[2]:
            larger = (max(rows, shape[0]), shape[1], max(columns, shape[2]))
            self.keys, self.values = (_moved(states, larger) for states in (self.keys, self.values))


class TiledCache(DynamicCache):
    """transformers' cache with :class:`TiledLayer` in every layer.

    Args:
        config: The model's.
    """

    layers: list[Any]

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.layers = [TiledLayer() for _ in self.layers]

    def aim(self, first: int, places: Tensor, columns: int) -> None:
        """The next tokens are those of rows from ``first`` on, ``places`` int64 ``[rows]``."""
        for layer in self.layers:
            layer.first, layer.places, layer.columns = first, places, columns

    def clear(self, first: int, rows: int, device: torch.device) -> None:
        """Forgets what some rows hold."""
        for layer in self.layers:
            layer.clear(first, rows)

    def select(self, sources: Sequence[int], device: torch.device) -> None:
        """Row i becomes a copy of what row ``sources[i]`` was."""
        moved = [(row, source) for row, source in enumerate(sources) if row != source]
        targets = torch.tensor([row for row, _ in moved], dtype=torch.long, device=device)
        origins = torch.tensor([source for _, source in moved], dtype=torch.long, device=device)
        for layer in self.layers:
            layer.select(targets, origins)


def check_deterministic(model: CausalModel) -> None:
    """Whether a model can be decoded so here; looked at in a few steps of its own.

    Raises:
        ConfigError: It is given media, its layers keep a window or a state of the past, torch has several threads, or
            the bits of a sequence do depend on others.
    """
    why = ""
    if any(type(layer) is not DynamicLayer for layer in DynamicCache(config=model.network.config).layers):
        why = "layers of the model keep a window or a state of the past, and only full attention is known to be exact"
    elif model.media is not None and model.media.encoders:
        why = "what a model sees or hears is computed at once, and its bits depend on what else is; give no encoders"
    elif model.device.type == "cpu" and torch.get_num_threads() > 1:
        threads = torch.get_num_threads()
        why = f"torch has {threads} threads, and bits depend on which of them computes; give `threads: 1`"
    elif not _is_invariant(model):
        why = f"on {model.device} the bits of a sequence depend on what else is decoded"
    if why:
        raise ConfigError(f"engine.deterministic: not possible: {why}")


@torch.inference_mode()
def _is_invariant(model: CausalModel) -> bool:
    """Whether a sequence has the same bits alone, and in another row among longer and shorter ones."""
    sequences = [[(size + index) % model.vocabulary for index in range(size)] for size in range(1, TILE + 2)]
    looked_at, *others = sequences[TILE // 2 :]
    alone, among = StepwiseDecoder(model), StepwiseDecoder(model)
    alone.add([looked_at])
    rows = among.add([*others, looked_at, *sequences[: TILE // 2]])
    place = len(others)
    same = torch.equal(alone.logits[0], among.logits[rows[place]])
    alone.extend([0], [1])
    after = among.extend(rows, [1] * len(rows))
    return same and torch.equal(alone.logits[0], among.logits[after[place]])


def _tiled(count: int) -> int:
    return -(-count // TILE) * TILE


def _moved(states: Tensor, shape: tuple[int, int, int]) -> Tensor:
    rows, heads, columns = states.shape[:3]
    moved = states.new_zeros(shape[0], heads, shape[2], states.shape[3])
    moved[:rows, :, :columns] = states
    return moved

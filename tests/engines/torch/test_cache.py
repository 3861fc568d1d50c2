"""The growing layer holds what transformers' own layer holds, while rows come, move and go."""

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3Config
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from relax_core.engines.torch.cache import GrowingCache, GrowingLayer

CPU = torch.device("cpu")


def states(rows: int, tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = torch.randn(2, rows, 2, tokens, 4, generator=torch.Generator().manual_seed(seed))
    return keys, values


def config(layer_types: Sequence[str] = ("full_attention",)) -> Qwen3Config:
    return Qwen3Config(num_hidden_layers=len(layer_types), layer_types=list(layer_types), use_sliding_window=True)


def test_it_holds_what_a_dynamic_layer_holds() -> None:
    cache, theirs = GrowingCache(config()), DynamicLayer()
    rows = 3
    for step in range(120):
        more = states(rows, 20 if step == 0 else 1, step)
        for mine, expected in zip(cache.update(*more, 0), theirs.update(*more), strict=True):
            assert torch.equal(mine, expected)
        assert cache.get_seq_length() == theirs.get_seq_length()
        if step % 13 == 0:
            selection = [rows - 1, 0, 0, rows - 1][: 1 + step % 4]
            cache.select(selection, CPU)
            theirs.reorder_cache(torch.tensor(selection))
            rows = len(selection)
    assert cache.get_mask_sizes(1, 0) == theirs.get_mask_sizes(1)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_rows_that_join_move_and_leave_keep_their_tokens(seed: int) -> None:
    """Beside a plain list of the tokens of each row; what lies before a row's tokens stays zero, or its own."""
    chance, cache, rows = random.Random(seed), GrowingCache(config()), list[torch.Tensor]()
    for step in range(30):
        if not rows or chance.random() < 0.3:
            joining = GrowingCache(config())
            keys, _ = joining.update(*states(chance.randint(1, 3), chance.randint(1, 12), seed + step), 0)
            if rows:
                cache.join(joining)
            else:
                cache = joining
            rows += list(keys)
        selection = [chance.randrange(len(rows)) for _ in range(chance.randint(1, len(rows) + 1))]
        cache.select(selection, CPU)
        rows = [rows[row] for row in selection]
        cache.trim(max(row.shape[1] for row in rows))
        more, values = states(len(rows), 1, -step)
        found, _ = cache.update(more, values, 0)
        rows = [torch.cat([row, token], dim=1) for row, token in zip(rows, more, strict=True)]
        assert cache.get_seq_length() == max(row.shape[1] for row in rows)
        for row, held in zip(rows, found, strict=True):
            assert torch.equal(held[:, held.shape[1] - row.shape[1] :], row)


def test_a_row_that_is_not_finite_leaves_nothing_behind() -> None:
    cache = GrowingCache(config())
    cache.update(*(torch.full_like(each, torch.nan) for each in states(3, 30, 0)), 0)
    cache.select([0], CPU)
    cache.trim(4)
    for tokens in (20, 2):
        joining = GrowingCache(config())
        joining.update(*states(1, tokens, 1), 0)
        cache.join(joining)
    for held in cache.update(*states(3, 1, 2), 0):
        assert held[1:].isfinite().all(), "a row finds no numbers of another"


def test_most_tokens_find_room() -> None:
    layer = GrowingLayer()
    layer.update(*states(2, 80, 0))
    storages = set()
    for step in range(100):
        layer.update(*states(2, 1, step))
        storages.add(layer.keys.data_ptr())
    assert len(storages) <= 10


@pytest.mark.parametrize("layer_type", ["full_attention", "sliding_attention"])
def test_only_full_attention_is_replaced(layer_type: str) -> None:
    cache = GrowingCache(config(["full_attention", layer_type]))
    full = layer_type == "full_attention"
    second = GrowingLayer if full else DynamicSlidingWindowLayer
    assert [type(layer) for layer in cache.layers] == [GrowingLayer, second]
    assert cache.joinable == full

"""The growing layer holds what transformers' own layer holds, without copying it at every token."""

import torch
from transformers import Qwen3Config
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from relax_core.engines.torch.cache import GrowingLayer, growing_cache


def states(rows: int, tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = torch.randn(2, rows, 2, tokens, 4, generator=torch.Generator().manual_seed(seed))
    return keys, values


def test_it_holds_what_a_dynamic_layer_holds() -> None:
    ours, theirs = GrowingLayer(), DynamicLayer()
    rows = 3
    for step in range(120):
        more = states(rows, 20 if step == 0 else 1, step)
        for mine, expected in zip(ours.update(*more), theirs.update(*more), strict=True):
            assert torch.equal(mine, expected)
        assert ours.get_seq_length() == theirs.get_seq_length()
        if step % 13 == 0:
            selection = torch.tensor([rows - 1, 0, 0, rows - 1])[: 1 + step % 4]
            ours.reorder_cache(selection)
            theirs.reorder_cache(selection)
            rows = len(selection)
    assert ours.get_mask_sizes(1) == theirs.get_mask_sizes(1)


def test_most_tokens_find_room() -> None:
    layer = GrowingLayer()
    layer.update(*states(2, 80, 0))
    storages = set()
    for step in range(100):
        layer.update(*states(2, 1, step))
        storages.add(layer.keys.data_ptr())
    assert len(storages) <= 10


def test_only_full_attention_is_replaced() -> None:
    config = Qwen3Config(
        num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"], use_sliding_window=True
    )
    assert [type(layer) for layer in growing_cache(config).layers] == [GrowingLayer, DynamicSlidingWindowLayer]

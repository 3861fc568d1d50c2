"""The table: what leaves is what came, for every family, size and layout; needs no backend."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from relax_megatron.conversion import HEAD, Conversion, Parameter
from transformers import AutoConfig, AutoModelForCausalLM

from relax_core.testing.models import tiny_model


@given(
    parts=st.sampled_from([(1,), (1, 1), (2, 1, 1), (3, 1, 1)]),
    groups=st.integers(1, 3),
    ranks=st.integers(1, 4),
    cut=st.sampled_from([None, 0, 1]),
)
def test_pieces_of_all_ranks_join_to_the_sources(
    parts: tuple[int, ...], groups: int, ranks: int, cut: int | None
) -> None:
    names = tuple(f"source {index}" for index in range(len(parts)))
    entry = Parameter(names, cut, parts, groups)
    rows = 2 * groups * (ranks if cut == 0 else 1)
    sources = [torch.randn(part * rows, 3 * ranks) for part in parts]
    pieces = [entry.split(entry.shard(sources, rank, ranks)) for rank in range(ranks)]
    for name, source in zip(names, sources, strict=True):
        assert torch.equal(entry.join([piece[name] for piece in pieces]), source)


@given(rows=st.integers(1, 20), ranks=st.integers(1, 5))
def test_a_vocabulary_need_not_divide_by_the_ranks(rows: int, ranks: int) -> None:
    entry = Parameter(("embedding",), cut=0, rows=rows)
    source = torch.randn(rows, 4)
    shards = [entry.shard([source], rank, ranks) for rank in range(ranks)]
    assert len({shard.shape for shard in shards}) == 1, "ranks hold equal parts"
    assert torch.equal(entry.join([entry.split(shard)["embedding"] for shard in shards]), source)


def test_query_key_and_value_are_interleaved_by_group_of_heads() -> None:
    query = torch.arange(8.0)[:, None]  # four heads of width 2, two for each key head
    key, value = torch.arange(10.0, 14)[:, None], torch.arange(20.0, 24)[:, None]
    entry = Parameter(("q", "k", "v"), 0, (2, 1, 1), groups=2)
    expected = [0, 1, 2, 3, 10, 11, 20, 21, 4, 5, 6, 7, 12, 13, 22, 23]
    assert entry.shard([query, key, value], 0, 1).flatten().tolist() == expected


def test_each_rank_has_its_gate_above_its_up_projection() -> None:
    entry = Parameter(("gate", "up"), 0, (1, 1))
    gate, up = torch.arange(4.0)[:, None], torch.arange(10.0, 14)[:, None]
    assert entry.shard([gate, up], 1, 2).flatten().tolist() == [2, 3, 12, 13]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_the_table_names_every_tensor_of_the_model(tmp_path: Path, family: str, tied: bool) -> None:
    folder = tiny_model(tmp_path, model_type=family, tie_word_embeddings=tied)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    conversion = Conversion(AutoConfig.from_pretrained(folder), 2)
    named = [source for entry in conversion.entries() for source in entry.sources]
    assert len(named) == len(set(named))
    assert set(named) == set(model.state_dict()) - ({HEAD} if tied else set())

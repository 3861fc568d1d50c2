"""Leaves grow as if each sequence had been computed alone, for every kind of attention."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from relax_core.api.context import ModelSource
from relax_core.engines.torch.decoder import Decoder
from relax_core.engines.torch.model import CausalModel, load_model
from relax_core.models.initialise import initialise_model

SMALL = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen3": {**SMALL, "model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 8},
    "llama": {**SMALL, "model_type": "llama", "num_key_value_heads": 2},
    "gpt2": {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 64},
    "gemma2": {**SMALL, "model_type": "gemma2", "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6},
    "bloom": {"model_type": "bloom", "n_layer": 2, "hidden_size": 32, "n_head": 4},
    "qwen3_moe": {**SMALL, "model_type": "qwen3_moe", "num_key_value_heads": 2, "head_dim": 8, "num_experts": 4,
                  "num_experts_per_tok": 2, "moe_intermediate_size": 16},
}  # fmt: skip


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CausalModel:
    folder = tmp_path_factory.mktemp(request.param)
    initialise_model(folder, {**ARCHITECTURES[request.param], "initializer_range": 0.3}, "bytes", 0)
    if request.param == "bloom":
        return load_model(ModelSource(folder, attention="eager"), "cpu", 64)
    return load_model(ModelSource(folder), "cpu", 0)


def expected(model: CausalModel, sequence: list[int]) -> torch.Tensor:
    return model.network(torch.tensor([sequence])).logits[0, -1]


class Forest:
    """A decoder beside the sequences that its leaves stand for."""

    def __init__(self, model: CausalModel) -> None:
        self.model = model
        self.decoder = Decoder(model)
        self.leaves: dict[int, list[int]] = {}

    def add(self, *sequences: list[int]) -> None:
        self.leaves |= dict(zip(self.decoder.add(sequences), sequences, strict=True))

    def extend(self, *children: tuple[int, int]) -> None:
        rows = self.decoder.extend([row for row, _ in children], [token_id for _, token_id in children])
        grown = [[*self.leaves[row], token_id] for row, token_id in children]
        self.leaves = dict(zip(rows, grown, strict=True))

    def check(self) -> None:
        assert sorted(self.leaves) == list(range(len(self.decoder.logits)))
        alone = torch.stack([expected(self.model, self.leaves[row]) for row in sorted(self.leaves)])
        torch.testing.assert_close(self.decoder.logits, alone, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("prompts", [[[5, 6, 7], [9, 8, 7]], [[1], [2, 3, 4, 5, 6, 7, 8, 9, 10], [11, 12]]], ids=str)
@torch.inference_mode()
def test_leaves_are_computed_as_if_alone(model: CausalModel, prompts: list[list[int]]) -> None:
    forest = Forest(model)
    forest.add(*prompts)
    forest.check()
    last = len(prompts) - 1
    forest.extend((0, 20), (0, 21), (last, 22), (last, 23))
    for children in ([(0, 24), (1, 25), (2, 26), (3, 27)], [(3, 28), (1, 29)], *[[(0, 30), (1, 31)]] * 12, [(1, 40)]):
        forest.check()
        forest.extend(*children)
    forest.check()


@torch.inference_mode()
def test_leaves_come_and_go(model: CausalModel) -> None:
    forest, chance = Forest(model), random.Random(0)
    for step in range(40):
        if forest.decoder.open and step % 4 == 0:
            forest.add(*([chance.randrange(60) for _ in range(chance.choice([1, 2, 9]))] for _ in range(step % 3 + 1)))
            forest.check()
        rows = chance.sample(sorted(forest.leaves), min(5, len(forest.leaves)))
        forest.extend(*{(chance.choice(rows), chance.randrange(60)): None for _ in range(chance.randint(1, 6))})
        forest.check()
        if max(map(len, forest.leaves.values())) > 20:
            youngest = min(forest.leaves, key=lambda row: len(forest.leaves[row]))
            forest.extend((youngest, 7))


@torch.inference_mode()
def test_only_caches_of_all_tokens_can_be_joined(model: CausalModel) -> None:
    forest = Forest(model)
    assert forest.decoder.open
    forest.add([1, 2])
    assert forest.decoder.open == (model.network.config.model_type != "gemma2")


@torch.inference_mode()
def test_many_sequences_enter_in_parts(model: CausalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relax_core.engines.torch.decoder.PREFILL_TOKENS", 8)
    forest = Forest(model)
    forest.add([1] * 9, [2], [3, 4, 5], [6, 7], [8] * 4)
    forest.check()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@torch.inference_mode()
def test_bfloat16_gives_float32_logits(tiny_model_path: Path, attention: str) -> None:
    model = load_model(ModelSource(tiny_model_path, dtype="bfloat16", attention=attention), "cpu", 0)
    decoder = Decoder(model)
    rows = decoder.extend(decoder.add([[1, 2], [3]]), [4, 5])
    assert decoder.logits.dtype == torch.float32
    torch.testing.assert_close(decoder.logits[rows[1]], expected(model, [3, 5]).float(), atol=2e-2, rtol=2e-2)

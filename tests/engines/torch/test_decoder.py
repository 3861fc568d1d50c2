"""Leaves grow as if each sequence had been computed alone, for every kind of attention."""

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


@pytest.mark.parametrize("prompts", [[[5, 6, 7], [9, 8, 7]], [[1], [2, 3, 4, 5, 6, 7, 8, 9, 10], [11, 12]]], ids=str)
@torch.inference_mode()
def test_leaves_are_computed_as_if_alone(model: CausalModel, prompts: list[list[int]]) -> None:
    decoder = Decoder(model, prompts)
    leaves = prompts
    last = len(prompts) - 1
    for parents, token_ids in (
        ([0, 0, last, last], [20, 21, 22, 23]),
        ([0, 1, 2, 3], [24, 25, 26, 27]),
        ([3, 1], [28, 29]),
        *[([0, 1], [30, 31])] * 12,
        ([1], [40]),
    ):
        torch.testing.assert_close(
            decoder.logits, torch.stack([expected(model, leaf) for leaf in leaves]), atol=2e-5, rtol=1e-4
        )
        decoder.extend(parents, token_ids)
        leaves = [[*leaves[parent], token_id] for parent, token_id in zip(parents, token_ids, strict=True)]
    torch.testing.assert_close(decoder.logits[0], expected(model, leaves[0]), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@torch.inference_mode()
def test_bfloat16_gives_float32_logits(tiny_model_path: Path, attention: str) -> None:
    model = load_model(ModelSource(tiny_model_path, dtype="bfloat16", attention=attention), "cpu", 0)
    decoder = Decoder(model, [[1, 2], [3]])
    decoder.extend([0, 1], [4, 5])
    assert decoder.logits.dtype == torch.float32
    torch.testing.assert_close(decoder.logits[1], expected(model, [3, 5]).float(), atol=2e-2, rtol=2e-2)

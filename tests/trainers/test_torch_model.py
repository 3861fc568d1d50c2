import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from relax_core.api.context import ModelSource
from relax_core.api.errors import ConfigError
from relax_core.models.initialise import initialise_model
from relax_core.trainers.torch.model import (
    checkpoint_gradients,
    load_model,
    require_packing,
    require_sharing,
    separable_head,
)

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
GROUPED = {**SMALL, "num_key_value_heads": 1, "head_dim": 16}
MODELS: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},
    "qwen3_moe": {**GROUPED, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2},
    "gemma2": {**GROUPED, "final_logit_softcapping": 30.0},
    "cohere": SMALL,
    "opt": {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
    "mistral": GROUPED,
    "falcon": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "alibi": True},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 2},
}


def tiny(tmp_path: Path, model_type: str, attention: str = "sdpa") -> Any:
    folder = initialise_model(tmp_path, {"model_type": model_type, **MODELS[model_type]}, "bytes", 0)
    return load_model(ModelSource(folder, attention=attention), "cpu")


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "qwen3_moe"])
def test_plain_logits_allow_chunks(tmp_path: Path, model_type: str) -> None:
    model = tiny(tmp_path, model_type)
    assert separable_head(model) is model.lm_head


@pytest.mark.parametrize("model_type", ["gemma2", "cohere"])
def test_changed_logits_are_noticed_though_small(
    tmp_path: Path, model_type: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny(tmp_path, model_type)
    with caplog.at_level(logging.WARNING):
        assert separable_head(model) is None
    assert [type(model).__name__ in record.message for record in caplog.records] == [True]


def test_the_check_leaves_the_model_as_it_was(tiny_model_path: Path) -> None:
    model = load_model(ModelSource(tiny_model_path), "cpu")
    ids = torch.arange(5)[None]
    before = model(input_ids=ids).logits
    separable_head(model)
    assert torch.equal(model(input_ids=ids).logits, before)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("model_type", ["llama", "gpt2", "qwen3_moe", "gemma2"])
def test_models_that_keep_packed_rows_apart(tmp_path: Path, model_type: str, attention: str) -> None:
    require_packing(tiny(tmp_path, model_type, attention))


def test_models_that_do_not_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.packing: rows packed for OPTForCausalLM .* influence each other"):
        require_packing(tiny(tmp_path / "opt", "opt"))
    with pytest.raises(ConfigError, match=r"trainer\.packing: BloomForCausalLM .* takes no position_ids"):
        require_packing(tiny(tmp_path / "bloom", "bloom", "eager"))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("model_type", ["llama", "gpt2", "qwen3_moe", "cohere", "opt"])
def test_models_whose_rows_may_share_a_beginning(tmp_path: Path, model_type: str, attention: str) -> None:
    require_sharing(tiny(tmp_path, model_type, attention))


@pytest.mark.parametrize(
    ("model_type", "attention", "reason"),
    [
        ("gemma2", "sdpa", r"see all tokens before \(sliding_attention, sliding_window\)"),
        ("mistral", "sdpa", r"see all tokens before \(sliding_window\)"),
        ("bloom", "eager", "takes no position_ids"),
        ("falcon", "sdpa", "does not take the mask"),
        ("qwen3_moe", "flex_attention", "takes no mask of its own"),
    ],
)
def test_models_whose_rows_may_not_are_refused(tmp_path: Path, model_type: str, attention: str, reason: str) -> None:
    model = tiny(tmp_path, model_type, attention)
    with pytest.raises(ConfigError, match=rf"trainer\.share_prompts: {type(model).__name__} .*{reason}"):
        require_sharing(model)


def test_rows_that_differ_behind_a_shared_beginning_are_noticed(tmp_path: Path) -> None:
    model = tiny(tmp_path, "llama")
    model.model.rotary_emb.register_forward_pre_hook(
        lambda _, inputs, named: (inputs, {"position_ids": torch.arange(inputs[0].shape[1])[None]}), with_kwargs=True
    )
    with pytest.raises(ConfigError, match=r"trainer\.share_prompts: .* differ from the same rows alone"):
        require_sharing(model)


def test_recomputed_layers_stay_without_dropout(tmp_path: Path) -> None:
    model = tiny(tmp_path, "opt")
    assert model.model.decoder.layers[0].dropout > 0, "the example needs a layer that drops out by itself"
    ids = torch.arange(9)[None]
    expected = model(input_ids=ids).logits
    checkpoint_gradients(model)
    logits = model(input_ids=ids, use_cache=False).logits
    assert torch.equal(logits, expected)
    calls: list[int] = []
    model.model.decoder.layers[0].fc1.register_forward_hook(lambda *_: calls.append(1))
    model(input_ids=ids, use_cache=False).logits.sum().backward()
    assert len(calls) == 2, "a layer runs once forward and once more in the backward pass"


def test_what_does_not_load_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = initialise_model(tmp_path / "bloom", {"model_type": "bloom", **MODELS["bloom"]}, "bytes", 0)
    with pytest.raises(ConfigError, match=r"model: .*bloom cannot be loaded with model\.attention 'sdpa'") as caught:
        load_model(ModelSource(folder), "cpu")
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="nowhere"):
        load_model(ModelSource(tmp_path / "nowhere"), "cpu")

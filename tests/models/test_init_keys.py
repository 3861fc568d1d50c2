"""A misspelt key of a model with random weights is refused: transformers would build another model."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from relax_core.api.errors import ConfigError
from relax_core.models.init_keys import require_known_keys
from relax_core.models.initialise import initialise_model
from relax_core.testing.models import TINY_MEDIA, TINY_QWEN3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_hiden_layers": 1}, r"num_hiden_layers: unknown key \(value 1\); did you mean 'num_hidden_layers'\?"),
        ({"learning_rate": 1}, r"learning_rate: unknown key \(value 1\); did you mean 'trainer\.learning_rate'\?"),
        ({"text_config": {}}, r"text_config: unknown key \(value \{\}\)"),
        ({"model_type": "qwen33"}, r"model_type: transformers knows no 'qwen33'; did you mean 'qwen3'\?"),
        ({"model_type": None}, r"model_type: transformers knows no None"),
        ({"model_type": "gpt2", "n_layers": 1}, r"n_layers: unknown key \(value 1\); did you mean 'n_layer'\?"),
    ],
)
def test_what_transformers_does_not_know_is_refused(tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
    base = TINY_QWEN3 if "model_type" not in wrong else {}
    with pytest.raises(ConfigError, match=rf"^model\.init\.{message}"):
        initialise_model(tmp_path / "model", {**base, **wrong}, "bytes", 0)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("model_type", TINY_MEDIA)
def test_keys_of_parts_are_compared_too(tmp_path: Path, model_type: str) -> None:
    config = {"model_type": model_type, **TINY_MEDIA[model_type]}
    for part in [name for name in config if name.endswith("_config")]:
        known = next(iter(config[part]))
        wrong = {**config, part: {**config[part], f"{known}x": 1}}
        with pytest.raises(ConfigError, match=rf"^model\.init\.{part}\.{known}x: unknown key .* '{known}'"):
            initialise_model(tmp_path, wrong, "bytes", 0)


@pytest.mark.parametrize("wrong", [{"hidden_size": "x"}, {"layer_types": ["x"]}])
def test_a_value_that_transformers_refuses_is_one_line(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"^model\.init: .*{next(iter(wrong))}") as refused:
        initialise_model(tmp_path, {**TINY_QWEN3, **wrong}, "bytes", 0)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gpt2", "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "n_positions": 8},
        {
            "model_type": "qwen2",
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "rope_theta": 1e4,
            "torch_dtype": "float32",
            "architectures": ["Qwen2ForCausalLM"],
            "attn_implementation": "eager",
        },
    ],
    ids=["other names of keys", "keys that only models and base classes read"],
)
def test_whatever_transformers_makes_use_of_is_taken(tmp_path: Path, config: dict[str, Any]) -> None:
    assert (initialise_model(tmp_path, config, "bytes", 0) / "config.json").is_file()


@pytest.mark.parametrize(
    ("model_type", "given"),
    [
        *((name, {}) for name in ("paligemma", "llava", "mistral3", "t5gemma")),
        ("llava", {"text_config": {"model_type": "llama", "num_hidden_layers": 1}}),
        *((name, {"partial_rotary_factor": 0.25}) for name in ("llama", "phi3", "stablelm")),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    ],
)
def test_what_transformers_sets_of_its_own_accord_is_nobodys_mistake(model_type: str, given: dict[str, Any]) -> None:
    require_known_keys(given, AutoConfig.for_model(model_type, **deepcopy(given)), ("model", "init"))

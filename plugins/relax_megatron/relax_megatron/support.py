"""Which models and layouts the Megatron-Core trainer takes; checked before a rank is started."""

from __future__ import annotations

from transformers import PretrainedConfig

from relax_core.api.context import ModelSource
from relax_core.api.errors import ConfigError
from relax_megatron.config import MegatronTrainerConfig

FAMILIES = ("llama", "qwen3")


def check_support(model: PretrainedConfig, source: ModelSource, config: MegatronTrainerConfig) -> None:
    """Refuses what the ranks would compute wrongly or cannot divide.

    Raises:
        ConfigError: Names the setting.
    """
    if model.model_type not in FAMILIES:
        raise ConfigError(f"trainer: 'megatron' trains {' and '.join(FAMILIES)} models, not {model.model_type!r}")
    if source.attention != "sdpa":
        raise ConfigError(f"model.attention: trainer 'megatron' computes with 'sdpa', not {source.attention!r}")
    for name, value, wanted in _must_be(model):
        if value != wanted:
            raise ConfigError(f"trainer: 'megatron' needs {name} {wanted!r} in the model's config, not {value!r}")
    for name, total, setting, parts in _must_divide(model, config):
        if total % parts:
            raise ConfigError(f"trainer.{setting}: {parts} does not divide the model's {total} {name}")


def _must_be(model: PretrainedConfig) -> list[tuple[str, object, object]]:
    rope = model.rope_parameters
    return [
        ("hidden_act", model.hidden_act, "silu"),
        ("attention_bias", getattr(model, "attention_bias", False), False),
        ("mlp_bias", getattr(model, "mlp_bias", False), False),
        ("use_sliding_window", getattr(model, "use_sliding_window", False), False),
        ("rope_parameters.rope_type", rope.get("rope_type", "default"), "default"),
        ("rope_parameters.partial_rotary_factor", rope.get("partial_rotary_factor", 1.0), 1.0),
    ]


def _must_divide(model: PretrainedConfig, config: MegatronTrainerConfig) -> list[tuple[str, int, str, int]]:
    return [
        ("attention heads", model.num_attention_heads, "tensor_parallel", config.tensor_parallel),
        ("key-value heads", model.num_key_value_heads, "tensor_parallel", config.tensor_parallel),
        ("columns of the MLP", model.intermediate_size, "tensor_parallel", config.tensor_parallel),
        ("layers", model.num_hidden_layers, "pipeline_parallel", config.pipeline_parallel),
    ]

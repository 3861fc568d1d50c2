"""What the ranks cannot compute is refused before they start; needs no backend."""

from pathlib import Path
from typing import Any

import pytest
from relax_megatron.config import MegatronTrainerConfig
from relax_megatron.support import check_support
from transformers import AutoConfig

from relax_core.api.context import ModelSource
from relax_core.api.errors import ConfigError

LLAMA = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128}


@pytest.mark.parametrize(
    ("model", "config", "names"),
    [
        ({"model_type": "gpt2"}, {}, "'gpt2'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, {}, "rope_parameters.rope_type"),
        ({"hidden_act": "gelu"}, {}, "hidden_act"),
        ({"attention_bias": True}, {}, "attention_bias"),
        ({}, {"tensor_parallel": 4}, "trainer.tensor_parallel: 4 does not divide the model's 2 key-value heads"),
        ({}, {"pipeline_parallel": 3}, "trainer.pipeline_parallel: 3 does not divide the model's 2 layers"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_name(model: dict[str, Any], config: dict[str, int], names: str) -> None:
    arguments = {"model_type": "llama", **LLAMA, **model}
    described = AutoConfig.for_model(**arguments)
    with pytest.raises(ConfigError, match=names):
        check_support(described, ModelSource(Path()), MegatronTrainerConfig(**config))


def test_another_attention_is_refused() -> None:
    described = AutoConfig.for_model("llama", **LLAMA)
    with pytest.raises(ConfigError, match=r"model\.attention"):
        check_support(described, ModelSource(Path(), attention="eager"), MegatronTrainerConfig())

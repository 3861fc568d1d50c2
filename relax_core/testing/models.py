"""Tiny models for tests: built in a fraction of a second, real in every respect but size."""

from pathlib import Path
from typing import Any

from relax_core.models.initialise import initialise_model

TINY_QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


def tiny_model(directory: Path, seed: int = 0, **overrides: Any) -> Path:
    """A random Qwen3 of about 80k parameters with the byte tokenizer (266 tokens), saved in ``directory``."""
    return initialise_model(directory, {**TINY_QWEN3, **overrides}, "bytes", seed)

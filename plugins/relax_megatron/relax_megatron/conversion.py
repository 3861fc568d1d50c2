"""Where each Megatron-Core parameter comes from, and goes to, in a Hugging Face model. The table is at the end.

Megatron-Core fuses matrices that read the same input: query, key and value, interleaved per group of query heads that
share a key head, ``[q … q, k, v]``; and, on each rank, the gate and the up projection, one above the other. Cutting
first and fusing then gives each rank its part, because groups are in the order of the heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PretrainedConfig

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Parameter:
    """How one parameter of Megatron-Core is made.

    Args:
        sources: Canonical Hugging Face names.
        cut: Axis along which tensor-parallel ranks share each source; ``None``: every rank holds it whole.
        parts: Relative numbers of rows of the sources in a group.
        groups: Number of groups of rows in the fused matrix of one rank.
        rows: Rows of the whole source where it is padded to a multiple of the ranks (vocabulary); else ``None``.
        partial: Whole on every rank, but each sees only its own heads: gradients have to be added up.
        copy: The parameter is a second copy of what an earlier pipeline stage holds (tied embeddings).
    """

    sources: tuple[str, ...]
    cut: int | None = None
    parts: tuple[int, ...] = (1,)
    groups: int = 1
    rows: int | None = None
    partial: bool = False
    copy: bool = False

    def shard(self, tensors: Sequence[Tensor], rank: int, ranks: int) -> Tensor:
        """The part of one tensor-parallel rank, from whole sources; or a number that all sources have in common."""
        if tensors[0].ndim == 0:
            return tensors[0]
        if self.rows is not None:
            tensors = [functional.pad(each, (0, 0, 0, -self.rows % ranks)) for each in tensors]
        pieces = [each if self.cut is None else each.chunk(ranks, self.cut)[rank] for each in tensors]
        grouped = [piece.unflatten(0, (self.groups, -1)) for piece in pieces]
        return torch.cat(grouped, 1).flatten(0, 1).contiguous()

    def split(self, shard: Tensor) -> dict[str, Tensor]:
        """The pieces of the sources in one rank's part, by name; each gets the number where the part is one."""
        if shard.ndim == 0:
            return dict.fromkeys(self.sources, shard)
        grouped = shard.unflatten(0, (self.groups, -1))
        unit = grouped.shape[1] // sum(self.parts)
        pieces = grouped.split([unit * part for part in self.parts], 1)
        return {name: piece.flatten(0, 1) for name, piece in zip(self.sources, pieces, strict=True)}

    def join(self, pieces: Sequence[Tensor]) -> Tensor:
        """A whole source from the pieces of all tensor-parallel ranks, in their order."""
        if self.cut is None or pieces[0].ndim == 0:
            return pieces[0]
        return torch.cat(list(pieces), self.cut)[: self.rows].contiguous()


class Conversion:
    """The table for one model under one tensor-parallel size.

    Args:
        model: Configuration of the Hugging Face model.
        ranks: Tensor-parallel ranks.
    """

    def __init__(self, model: PretrainedConfig, ranks: int) -> None:
        self.layers = model.num_hidden_layers
        self.outer = _outer(model.vocab_size, bool(model.tie_word_embeddings))
        self.inner = _inner(model, ranks)

    def parameter(self, name: str, first_layer: int) -> Parameter:
        """The entry of a parameter in the pipeline stage that begins with layer ``first_layer``.

        Raises:
            KeyError: The table has no such parameter.
        """
        if name in self.outer:
            return self.outer[name]
        layer, _, rest = name.removeprefix("decoder.layers.").partition(".")
        return self._in_layer(self.inner[rest], int(layer) + first_layer)

    def entries(self) -> Iterator[Parameter]:
        """Every parameter of the whole model once, from the embedding to the head."""
        embedding, *rest = self.outer.values()
        yield embedding
        for layer in range(self.layers):
            yield from (self._in_layer(each, layer) for each in self.inner.values())
        yield from (each for each in rest if not each.copy)

    def join(self, shards: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Whole tensors from the pieces of every rank.

        Args:
            shards: By source name, one mapping per rank, in an order that keeps tensor-parallel ranks in theirs.
        """
        return {
            source: entry.join([shard[source] for shard in shards if source in shard])
            for entry in self.entries()
            for source in entry.sources
        }

    @staticmethod
    def _in_layer(entry: Parameter, layer: int) -> Parameter:
        return replace(entry, sources=tuple(f"model.layers.{layer}.{source}" for source in entry.sources))


def _outer(vocabulary: int, tied: bool) -> dict[str, Parameter]:
    """Entries outside the layers."""
    head = EMBEDDING if tied else HEAD
    return {
        "embedding.word_embeddings.weight": Parameter((EMBEDDING,), cut=0, rows=vocabulary),
        "decoder.final_layernorm.weight": Parameter(("model.norm.weight",)),
        "output_layer.weight": Parameter((head,), cut=0, rows=vocabulary, copy=tied),
    }


def _inner(model: PretrainedConfig, ranks: int) -> dict[str, Parameter]:
    """Entries of one layer, by the name within it; sources as well."""
    shared = model.num_attention_heads // model.num_key_value_heads
    groups = model.num_key_value_heads // ranks
    query, key, value = (f"self_attn.{name}_proj.weight" for name in "qkv")
    norms = {
        "self_attention.q_layernorm.weight": Parameter(("self_attn.q_norm.weight",), partial=True),
        "self_attention.k_layernorm.weight": Parameter(("self_attn.k_norm.weight",), partial=True),
    }
    return {
        "input_layernorm.weight": Parameter(("input_layernorm.weight",)),
        "self_attention.linear_qkv.weight": Parameter((query, key, value), 0, (shared, 1, 1), groups),
        **(norms if has_head_norms(model) else {}),
        "self_attention.linear_proj.weight": Parameter(("self_attn.o_proj.weight",), cut=1),
        "pre_mlp_layernorm.weight": Parameter(("post_attention_layernorm.weight",)),
        "mlp.linear_fc1.weight": Parameter(("mlp.gate_proj.weight", "mlp.up_proj.weight"), 0, (1, 1)),
        "mlp.linear_fc2.weight": Parameter(("mlp.down_proj.weight",), cut=1),
    }


def has_head_norms(model: PretrainedConfig) -> bool:
    """Whether queries and keys are normalised per head (Qwen3; not Llama)."""
    return bool(model.model_type == "qwen3")

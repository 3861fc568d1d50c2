"""A Hugging Face causal language model, and what an engine must know of it."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from relax_core.api.context import ModelSource
from relax_core.api.errors import ConfigError
from relax_core.models.load import load_language_model


@dataclass(frozen=True)
class CausalModel:
    """A model in evaluation mode, with its tokenizer where the folder has one.

    Args:
        network: The transformers model.
        tokenizer: For stop strings; ``None`` when the folder holds none.
        context_length: Most tokens of a prompt and its answer together.
        end_ids: Token ids that end a text by the model's own configuration.
        device: Where it computes.
    """

    network: Any
    tokenizer: Any
    context_length: int
    end_ids: frozenset[int]
    device: torch.device

    @property
    def vocabulary(self) -> int:
        """Number of token ids the model can read."""
        return int(self.network.get_input_embeddings().num_embeddings)

    @cached_property
    def _accepted(self) -> frozenset[str]:
        return frozenset(inspect.signature(self.network.forward).parameters)

    def next_logits(self, token_ids: Tensor, mask: Tensor | None, positions: Tensor, cache: Any) -> Tensor:
        """Logits after the last of some tokens, whose keys and values are added to the cache.

        Args:
            token_ids: int64 ``[n, t]``, padded on the left.
            mask: int64 ``[n, cached + t]``, 0 at padding; ``None`` when nothing is padded.
            positions: int64 ``[n, t]``.
            cache: A transformers cache.

        Returns:
            float32 ``[n, vocabulary]``.
        """
        arguments: dict[str, Any] = {"position_ids": positions, "logits_to_keep": 1}
        arguments = {name: value for name, value in arguments.items() if name in self._accepted}
        output = self.network(
            input_ids=token_ids, attention_mask=mask, past_key_values=cache, use_cache=True, **arguments
        )
        logits: Tensor = output.logits[:, -1].float()
        return logits


def load_model(source: ModelSource, device: str, context_length: int) -> CausalModel:
    """Loads a model folder for inference.

    Args:
        source: The folder, and how to load it.
        device: torch device string.
        context_length: As in :class:`TorchEngineConfig`; 0 takes the model's own.

    Raises:
        ConfigError: The folder cannot be loaded, lacks weights or holds a model without key-value cache; or
            ``context_length`` is beyond the model's, or absent where the model has none.
    """
    network = _network(source).to(device).eval().requires_grad_(False)
    longest: int | None = getattr(network.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if longest is None and not context_length:
        raise ConfigError(f"engine.context_length: must be given, for {source.path} states no max_position_embeddings")
    if longest is not None and context_length > longest:
        raise ConfigError(f"engine.context_length: {context_length} is more than the {longest} of {source.path}")
    end_ids = _end_ids([network.generation_config, network.config, network.config.get_text_config(decoder=True)])
    return CausalModel(network, _tokenizer(source), context_length or longest or 0, end_ids, torch.device(device))


def _network(source: ModelSource) -> Any:
    network = load_language_model(source)
    if "past_key_values" not in inspect.signature(network.forward).parameters:
        raise ConfigError(f"model: {type(network).__name__} takes no key-value cache, which the torch engine needs")
    return network


def _end_ids(configs: Sequence[Any]) -> frozenset[int]:
    """The union over all places in which models state their end-of-sequence ids, as a number or as a list."""
    found: set[int] = set()
    for config in configs:
        ids = getattr(config, "eos_token_id", None)
        found |= {ids} if isinstance(ids, int) else set(ids or ())
    return frozenset(found)


def _tokenizer(source: ModelSource) -> Any:
    """The folder's tokenizer, or ``None``: ids can be sampled without one."""
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(source.path, trust_remote_code=source.trust_remote_code)
    except (OSError, ValueError):
        return None
    # for a folder without one, transformers may make up a tokenizer of special tokens alone
    return tokenizer if len(tokenizer) > len(tokenizer.all_special_ids) else None

"""A Hugging Face model that writes text, and what an engine must know of it."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from relax_core.api.context import ModelSource
from relax_core.api.encoder import Encoder
from relax_core.api.errors import ConfigError
from relax_core.models.load import load_language_model
from relax_core.models.media_inputs import MediaInputs
from relax_core.models.media_tokens import media_tokens
from relax_core.models.tokenizer import load_tokenizer


@dataclass(frozen=True)
class CausalModel:
    """A model in evaluation mode, with its tokenizer where the folder has one.

    Args:
        network: The transformers model.
        tokenizer: For stop strings; ``None`` when the folder holds none.
        context_length: Most tokens of a prompt and its answer together.
        end_ids: Token ids that end a text by the model's own configuration.
        device: Where it computes.
        media: Feeds it with what it sees and hears; ``None`` for a model of text alone.
    """

    network: Any
    tokenizer: Any
    context_length: int
    end_ids: frozenset[int]
    device: torch.device
    media: MediaInputs | None = None

    @property
    def vocabulary(self) -> int:
        """Number of token ids the model can read."""
        return int(self.network.get_input_embeddings().num_embeddings)

    @cached_property
    def _accepted(self) -> frozenset[str]:
        return frozenset(inspect.signature(self.network.forward).parameters)

    @cached_property
    def _never_drawn(self) -> Tensor | None:
        """The ids of placeholders: a model that wrote one would have to see something there."""
        return None if self.media is None else torch.as_tensor(self.media.placeholders, device=self.device)

    def next_logits(
        self,
        token_ids: Tensor,
        mask: Tensor | None,
        positions: Tensor,
        cache: Any,
        media: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Logits after the last of some tokens, whose keys and values are added to the cache.

        Args:
            token_ids: int64 ``[n, t]``, padded on the left.
            mask: int64 ``[n, cached + t]``, 0 at padding; ``None`` when nothing is padded.
            positions: ``[n, t]``, or ``[3, n, t]`` where axes differ.
            cache: A transformers cache.
            media: What the model sees and hears at placeholders among the tokens, as arguments of its ``forward``.

        Returns:
            float32 ``[n, vocabulary]``, minus infinity for placeholders.
        """
        arguments: dict[str, Any] = {"position_ids": positions, "logits_to_keep": 1}
        arguments = {name: value for name, value in arguments.items() if name in self._accepted}
        output = self.network(
            input_ids=token_ids,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            **arguments,
            **(media or {}),
        )
        logits: Tensor = output.logits[:, -1].float()
        return logits if self._never_drawn is None else logits.index_fill(-1, self._never_drawn, -torch.inf)


def load_model(source: ModelSource, device: str, context_length: int, encoders: Sequence[Encoder] = ()) -> CausalModel:
    """Loads a model folder for inference.

    Args:
        source: The folder, and how to load it.
        device: torch device string.
        context_length: As in :class:`TorchEngineConfig`; 0 takes the model's own.
        encoders: Of the media it will be given.

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
    tokens = media_tokens(source)
    media = MediaInputs(network, tokens, encoders) if tokens else None
    if media is not None and "logits_to_keep" not in inspect.signature(network.forward).parameters:
        network.get_output_embeddings().register_forward_pre_hook(_newest_alone)
    return CausalModel(
        network, _tokenizer(source), context_length or longest or 0, end_ids, torch.device(device), media
    )


def _newest_alone(_: torch.nn.Module, states: tuple[Tensor]) -> tuple[Tensor]:
    """Thinkers of omni models would compute the logits of a whole prompt, of which an engine needs the last."""
    return (states[0][:, -1:],)


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
        tokenizer = load_tokenizer(source)
    except (OSError, ValueError):
        return None
    # for a folder without one, transformers may make up a tokenizer of special tokens alone
    return tokenizer if len(tokenizer) > len(tokenizer.all_special_ids) else None

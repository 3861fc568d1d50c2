"""Which tokens of a model stand for media."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relax_core.api.context import ModelSource
from relax_core.api.media import KINDS, Kind
from relax_core.models.loading import loading
from relax_core.models.tokenizer import load_tokenizer

VISION = ("vision_start_token_id", "vision_bos_token"), ("vision_end_token_id", "vision_eos_token")
AUDIO = ("audio_start_token_id", "audio_bos_token"), ("audio_end_token_id", "audio_eos_token")
MARKS: Mapping[Kind, Any] = {"image": VISION, "video": VISION, "audio": AUDIO}
"""By kind, what the marks before and behind a medium are called: in the configuration, and by the tokenizer."""

TOWERS: Mapping[Kind, str] = {"image": "vision", "video": "vision", "audio": "audio"}
"""The part of a model that each kind goes through first."""

WHOLE = ("qwen2_5_omni", "qwen3_omni_moe")
"""Types of models of which the thinker is a part, beside others that speak."""


@dataclass(frozen=True)
class MediaTokens:
    """How the runs of a medium of some kind stand in a prompt: ``before``, placeholders, ``after``.

    Args:
        placeholder: Id that is repeated, once for every feature the model makes of the medium.
        before: Ids of the mark that begins it.
        after: Ids of the mark that ends it.
    """

    placeholder: int
    before: tuple[int, ...]
    after: tuple[int, ...]


def media_tokens(source: ModelSource) -> Mapping[Kind, MediaTokens]:
    """The tokens of each kind that a model takes, out of its folder; none of a model of text alone.

    Raises:
        ConfigError: The folder cannot be read.
    """
    from transformers import AutoConfig  # and with it PyTorch, which text needs only where a model is

    with loading(source.path):
        config = thinker_config(AutoConfig.from_pretrained(source.path, trust_remote_code=source.trust_remote_code))
    kinds = [
        kind for kind in KINDS if hasattr(config, f"{TOWERS[kind]}_config") and hasattr(config, f"{kind}_token_id")
    ]
    if not kinds:
        return {}
    with loading(source.path):
        tokenizer = load_tokenizer(source)
    return {kind: _tokens(kind, config, tokenizer) for kind in kinds}


def thinker_config(config: Any) -> Any:
    """The configuration of the part that reads prompts and writes text: all of most models."""
    return config.thinker_config if config.model_type in WHOLE else config


def _tokens(kind: Kind, config: Any, tokenizer: Any) -> MediaTokens:
    before, after = (_mark(config, tokenizer, *names) for names in MARKS[kind])
    return MediaTokens(getattr(config, f"{kind}_token_id"), before, after)


def _mark(config: Any, tokenizer: Any, by_config: str, by_tokenizer: str) -> tuple[int, ...]:
    """Qwen3-Omni's configuration names some marks only."""
    index = getattr(config, by_config, None)
    if index is None:
        index = tokenizer.convert_tokens_to_ids(getattr(tokenizer, by_tokenizer, None))
    return () if index is None else (index,)

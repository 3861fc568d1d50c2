"""Loading a model that writes text, checked, for whichever component holds it."""

import threading
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
)

from relax_core.api.context import ModelSource
from relax_core.api.errors import ConfigError
from relax_core.models.audio_chunks import make_clips_independent
from relax_core.models.media_tokens import thinker_config

_LOADING = threading.Lock()
"""transformers changes global state while it loads; two models that load together leave tied weights uninitialised."""


def load_language_model(source: ModelSource, folder: Path | None = None, dtype: str | None = None) -> Any:
    """The transformers model of ``source``, on the host; weights from another ``folder``, or in another ``dtype``.

    A causal language model; one that sees or hears beside that; or the thinker of an omni model, from a folder of its
    own or out of the whole model's.

    Raises:
        ConfigError: The folder cannot be loaded as such a model, or lacks some of its weights.
    """
    path = folder or source.path
    try:
        whole = AutoConfig.from_pretrained(path, trust_remote_code=source.trust_remote_code)
        config = thinker_config(whole)
        with _LOADING:
            model, report = auto_class(config).from_pretrained(
                path,
                dtype=getattr(torch, dtype or source.dtype),
                attn_implementation=source.attention,
                trust_remote_code=source.trust_remote_code,
                output_loading_info=True,
                **({} if config is whole else {"config": config}),
            )
    except (ImportError, OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"model: {path} cannot be loaded with model.attention {source.attention!r}: {reason}"
        ) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise ConfigError(f"model: {path} cannot be loaded: it lacks {len(missing)} weights, first {missing[0]}")
    make_clips_independent(model)
    return model


def auto_class(config: Any) -> Any:
    """The class of transformers that makes a model of a configuration: where there is a choice, that of text alone."""
    sees = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING
    return AutoModelForImageTextToText if sees else AutoModelForCausalLM

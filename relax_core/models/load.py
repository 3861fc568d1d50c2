"""Loading a causal language model, checked, for whichever component holds it."""

import threading
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from relax_core.api.context import ModelSource
from relax_core.api.errors import ConfigError

_LOADING = threading.Lock()
"""transformers changes global state while it loads; two models that load together leave tied weights uninitialised."""


def load_causal_model(source: ModelSource, folder: Path | None = None, dtype: str | None = None) -> Any:
    """The transformers model of ``source``, on the host; weights from another ``folder``, or in another ``dtype``.

    Raises:
        ConfigError: The folder cannot be loaded as a causal language model, or lacks some of its weights.
    """
    path = folder or source.path
    loader: Any = AutoModelForCausalLM
    try:
        with _LOADING:
            model, report = loader.from_pretrained(
                path,
                dtype=getattr(torch, dtype or source.dtype),
                attn_implementation=source.attention,
                trust_remote_code=source.trust_remote_code,
                output_loading_info=True,
            )
    except (ImportError, OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"model: {path} cannot be loaded with model.attention {source.attention!r}: {reason}"
        ) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise ConfigError(f"model: {path} cannot be loaded: it lacks {len(missing)} weights, first {missing[0]}")
    return model

"""Loading a model that writes text, and finding out how far it lets itself be taken apart."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from relax_core.api.context import ModelSource
from relax_core.api.errors import ConfigError
from relax_core.models.load import load_language_model
from relax_core.trainers.sharing import attention_mask

logger = logging.getLogger(__name__)

HOST = "cpu"
"""Where weights wait that are not in use."""

Model = Any
"""A transformers model that writes text; its library gives it no type that carries the attributes used here."""


def load_model(source: ModelSource, device: str, folder: Path | None = None, dtype: str | None = None) -> Model:
    """The model of ``source``, without dropout; other weights of the same model from ``folder``, or another dtype.

    Raises:
        ConfigError: transformers cannot load it so.
    """
    model: Model = load_language_model(source, folder, dtype)
    return model.to(device).eval()


def last_states(model: Model, arguments: Mapping[str, Any]) -> Tensor:
    """``[B, L, H]``: what the output layer is given."""
    if model.base_model is not model:
        states: Tensor = model.base_model(**arguments).last_hidden_state
        return states
    # The thinkers of omni models put their parts together in ``forward`` itself: it is run, but for the logits.
    with _withheld_states(model.get_output_embeddings()) as withheld:
        model(**arguments)
    return withheld[0]


@contextmanager
def _withheld_states(head: nn.Module) -> Iterator[list[Tensor]]:
    """Gives ``head`` no state to work on; yields what it was to be given."""
    withheld: list[Tensor] = []

    def withhold(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        withheld.append(inputs[0])
        return (inputs[0][:, :0],)

    handle = head.register_forward_pre_hook(withhold)
    try:
        yield withheld
    finally:
        handle.remove()


def separable_head(model: Model) -> nn.Linear | None:
    """The output layer, if the logits are exactly that layer applied to the base model's last hidden states.

    Some models scale or cap their logits (Cohere, Gemma 2), others keep a projection in between. To see it at any size
    of logits, the layer's output is replaced by known numbers on a short input: they must come out as they are.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        return None
    ids = torch.arange(8, device=model.device)[None]
    with torch.no_grad():
        hidden = last_states(model, {"input_ids": ids, "use_cache": False})
        with _replaced_output(head) as seen:
            logits = model(input_ids=ids, use_cache=False).logits
    untouched = "output" in seen and torch.equal(logits.float(), seen["output"].float())
    if untouched and torch.allclose(hidden.float(), seen["input"].float(), rtol=1e-2, atol=1e-3):
        return head
    logger.warning("%s changes its logits after the output layer: they are held whole", type(model).__name__)
    return None


@contextmanager
def _replaced_output(head: nn.Linear) -> Iterator[dict[str, Tensor]]:
    """Makes ``head`` return numbers from −100 to 100; yields what it was last given and what it gave."""
    seen: dict[str, Tensor] = {}

    def replace(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        known = torch.linspace(-100, 100, output.numel(), device=output.device).view_as(output)
        seen.update(input=inputs[0], output=known.to(output.dtype))
        return seen["output"]

    handle = head.register_forward_hook(replace)
    try:
        yield seen
    finally:
        handle.remove()


def require_packing(model: Model) -> None:
    """Refuses a model in which rows laid end to end influence each other.

    Raises:
        ConfigError: The model takes no positions, or a row behind another one differs from the same row alone.
    """
    name = f"{type(model).__name__} with attention {model.config._attn_implementation!r}"
    if "position_ids" not in inspect.signature(model.base_model.forward).parameters:
        raise ConfigError(f"trainer.packing: {name} takes no position_ids, so rows cannot be packed; use false")
    ids = torch.arange(12, device=model.device)[None]
    places = torch.cat([ids.new_tensor(range(length)) for length in (4, 8)])[None]
    with torch.no_grad():
        alone = last_states(model, {"input_ids": ids[:, 4:], "use_cache": False})
        packed = last_states(model, {"input_ids": ids, "position_ids": places, "use_cache": False})[:, 4:]
    tolerance = 1e-4 if model.dtype == torch.float32 else 0.05
    if not torch.allclose(packed, alone, tolerance, tolerance):
        raise ConfigError(f"trainer.packing: rows packed for {name} influence each other; use false")


def require_sharing(model: Model) -> None:
    """Refuses a model in which rows behind a shared beginning differ from the same rows alone.

    Raises:
        ConfigError: The model takes no positions or no mask, some of its layers need a mask of their own, or a row
            differs.
    """
    attention = model.config._attn_implementation
    refused = f"trainer.share_prompts: {type(model).__name__} with attention {attention!r}"
    if attention not in ("sdpa", "eager"):
        raise ConfigError(f"{refused} takes no mask of its own; use sdpa or eager, or false")
    if "position_ids" not in inspect.signature(model.base_model.forward).parameters:
        raise ConfigError(f"{refused} takes no position_ids, so rows cannot share a beginning; use false")
    if partial := _partial_attention(model):
        raise ConfigError(f"{refused} has layers that do not see all tokens before ({partial}); use false")
    ids = torch.arange(12, device=model.device)[None]
    places = torch.cat([ids[:, :8], ids[:, 4:8]], dim=1)
    mask = attention_mask(torch.tensor([[12] * 4 + [8] * 4 + [12] * 4], device=model.device), model.dtype)
    with torch.no_grad():
        rows = torch.cat([ids[:, :8], torch.cat([ids[:, :4], ids[:, 8:]], dim=1)])
        alone = last_states(model, {"input_ids": rows, "use_cache": False})
        arguments = {"input_ids": ids, "position_ids": places, "attention_mask": mask, "use_cache": False}
        try:
            shared = last_states(model, arguments)[0]
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ConfigError(f"{refused} does not take the mask ({error}); use false") from error
    tolerance = 1e-4 if model.dtype == torch.float32 else 0.05
    if not torch.allclose(shared, torch.cat([alone[0], alone[1, 4:]]), tolerance, tolerance):
        raise ConfigError(f"{refused}: rows behind a shared beginning differ from the same rows alone; use false")


def _partial_attention(model: Model) -> str:
    """Settings by which some layers see only a part of the tokens before. A given mask would open it to them, which
    shows only in rows longer than that part."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    windows = [name for name in ("sliding_window", "window_size") if getattr(config, name, None) is not None]
    return ", ".join([*sorted(kinds), *windows])


def checkpoint_gradients(model: Model) -> None:
    """Makes every layer recompute itself in the backward pass.

    Layers do so only in training mode; they alone are put into it, what lies inside them stays without dropout.

    Raises:
        ConfigError: The model cannot do it.
    """
    if not model.supports_gradient_checkpointing:
        raise ConfigError(f"trainer.gradient_checkpointing: {type(model).__name__} does not support it; use false")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.training = True
            for name, value in vars(layer).items():
                if "drop" in name and isinstance(value, float):
                    setattr(layer, name, 0.0)

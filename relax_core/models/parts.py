"""The parts of a model that are trained, or stay as they are."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

from torch import nn

from relax_core.api.errors import ConfigError

TOWERS = {"visual": "vision", "audio_tower": "audio"}
"""The module of each tower in the Qwen-VL and Qwen-Omni families."""

PROJECTIONS = frozenset({"merger", "merger_list", "deepstack_merger_list", "proj", "proj1", "proj2"})
"""What in a tower makes features as wide as the language model."""


def freeze(model: Any, parts: Iterable[str]) -> None:
    """Excludes parts of a model from training.

    Raises:
        ConfigError: The model has no such part, or nothing is left to train.
    """
    frozen = set(parts)
    found = {part for part, _ in _parameters(model)}
    for absent in sorted(frozen - found):
        nearest = get_close_matches(absent, found, 1, cutoff=0)[0]
        name = type(model).__name__
        raise ConfigError(f"trainer.freeze: {name} has no {absent!r}; did you mean {nearest!r}? It has {sorted(found)}")
    if frozen == found:
        raise ConfigError(f"trainer.freeze: nothing of {type(model).__name__} is left to train")
    for part, parameter in _parameters(model):
        if part in frozen:
            parameter.requires_grad_(False)


def tower_of(name: str) -> str | None:
    """``vision`` or ``audio``, for a module or parameter in a tower or its projection, by its name."""
    return next((sense for tower, sense in TOWERS.items() if tower in name.split(".")), None)


def part_of(name: str) -> str:
    """The part that a parameter belongs to, by its name."""
    sense = tower_of(name)
    if sense is None:
        return "language_model"
    path = name.split(".")
    inside = next(path[place + 1] for place, module in enumerate(path) if TOWERS.get(module) == sense)
    return f"{sense}_projection" if inside in PROJECTIONS else f"{sense}_tower"


def _parameters(model: Any) -> Iterator[tuple[str, nn.Parameter]]:
    return ((part_of(name), parameter) for name, parameter in model.named_parameters())

"""Which sections of a run select components."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from relax_core.config.base import AlgorithmConfig, Config, EngineConfig, RewardConfig, TrainerConfig
from relax_core.config.fields import all_keys
from relax_core.config.problems import Key, dotted
from relax_core.config.run import RunSections

DEFAULT_SINKS: Final = ("console", "jsonl", "tensorboard")
EACH: Final = "<name>"
"""Part of a section's key: each key of the mapping that stands there."""


@dataclass(frozen=True)
class Section:
    """A section whose value is a component's name, or a mapping of ``name`` and the component's own keys.

    Args:
        key: Where it is; one that holds :data:`EACH` is in several places.
        kind: Kind of the component, one of :data:`relax_core.hooks.KINDS`.
        default: Component where no name is given, ``None`` where a name is required.
        many: Whether a list of components may stand here.
        base: What the component's configuration class must derive from.
    """

    key: tuple[str, ...]
    kind: str
    default: str | None = None
    many: bool = False
    base: type[Config] = Config


SECTIONS: Final = (
    Section(("algorithm",), "algorithms", "grpo", base=AlgorithmConfig),
    Section(("trainer",), "trainers", "torch", base=TrainerConfig),
    Section(("engine",), "engines", "torch", base=EngineConfig),
    Section(("transport",), "transports", "memory"),
    Section(("weight_sync",), "weight_syncs", "local"),
    Section(("dataset",), "datasets"),
    Section(("reward",), "rewards", many=True, base=RewardConfig),
    Section(("sinks",), "sinks", many=True),
    Section(("encoders",), "encoders", many=True),
    Section(("eval", "dataset"), "datasets"),
    Section(("eval", "reward"), "rewards", many=True, base=RewardConfig),
    Section(("eval", "sets", EACH, "dataset"), "datasets"),
    Section(("eval", "sets", EACH, "reward"), "rewards", many=True, base=RewardConfig),
    Section(("warmup", "algorithm"), "algorithms", "sft", base=AlgorithmConfig),
    Section(("warmup", "dataset"), "datasets"),
    Section(("warmup", "trainer"), "trainers", "torch", base=TrainerConfig),
)


def section_at(key: Key) -> Section | None:
    """The section in which a component at ``key`` stands; an index follows the key of a list of components."""
    for section in SECTIONS:
        is_item = section.many and len(key) > 1 and isinstance(key[-1], int)
        if _stands_for(section.key, key[:-1] if is_item else key):
            return section
    return None


def _stands_for(pattern: tuple[str, ...], key: Key) -> bool:
    return len(pattern) == len(key) and all(part in (EACH, given) for part, given in zip(pattern, key, strict=True))


def places(section: Section, document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Where a section may stand in a document, whether or not it does."""
    found: list[tuple[tuple[str, ...], Any]] = [((), document)]
    for part in section.key:
        inside = [(key, holder if isinstance(holder, Mapping) else {}) for key, holder in found]
        found = [
            ((*key, name), holder.get(name)) for key, holder in inside for name in (holder if part == EACH else [part])
        ]
    return [key for key, _ in found]


def places_of(name: str) -> list[str]:
    """Where a key of this name is known: ``learning_rate`` -> ``["trainer.learning_rate"]``.

    Knows the run's own keys, and of its components those that all of a kind have.
    """
    keys = list(all_keys(RunSections))
    for section in SECTIONS:
        if len(section.key) == 1 and not section.many:
            keys += all_keys(section.base, section.key)
    return [dotted(key) for key in keys if key[-1] == name]

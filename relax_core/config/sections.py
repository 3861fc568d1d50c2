"""Which sections of a run select components."""

from dataclasses import dataclass
from typing import Final

from relax_core.config.base import AlgorithmConfig, Config, EngineConfig, RewardConfig, TrainerConfig
from relax_core.config.fields import all_keys
from relax_core.config.problems import Key, dotted
from relax_core.config.run import RunSections

DEFAULT_SINKS: Final = ("console", "jsonl", "tensorboard")


@dataclass(frozen=True)
class Section:
    """A section whose value is a component's name, or a mapping of ``name`` and the component's own keys.

    Args:
        key: Where it is.
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
    Section(("eval", "dataset"), "datasets"),
    Section(("eval", "reward"), "rewards", many=True, base=RewardConfig),
    Section(("warmup", "algorithm"), "algorithms", "sft", base=AlgorithmConfig),
    Section(("warmup", "dataset"), "datasets"),
    Section(("warmup", "trainer"), "trainers", "torch", base=TrainerConfig),
)


def section_at(key: Key) -> Section | None:
    """The section in which a component at ``key`` stands; an index follows the key of a list of components."""
    for section in SECTIONS:
        if key == section.key or (section.many and key[:-1] == section.key and isinstance(key[-1], int)):
            return section
    return None


def places_of(name: str) -> list[str]:
    """Where a key of this name is known: ``learning_rate`` -> ``["trainer.learning_rate"]``.

    Knows the run's own keys, and of its components those that all of a kind have.
    """
    keys = list(all_keys(RunSections))
    for section in SECTIONS:
        if len(section.key) == 1 and not section.many:
            keys += all_keys(section.base, section.key)
    return [dotted(key) for key in keys if key[-1] == name]

"""The hooks a plugin may implement: one per kind of component, each returning names and import strings.

A hook is called once, when plugins are loaded, by every command; it must not import a backend. To add a kind: its name
in :data:`KINDS`, one specification here, one abstract class in :mod:`relax_core.api`, one contract suite.
"""

from typing import Final

from relax_core.component import Component, hookspec

KINDS: Final = (
    "trainers",
    "engines",
    "algorithms",
    "transports",
    "weight_syncs",
    "sinks",
    "rewards",
    "datasets",
    "encoders",
)
"""All kinds of components; the hook of a kind is ``relax_<kind>``."""


def section(kind: str) -> str:
    """Name of the configuration section that selects a component of this kind: ``algorithms`` -> ``algorithm``."""
    return kind.removesuffix("s")


@hookspec
def relax_trainers() -> list[Component]:
    """Trainers hold the policy that learns: forward and backward passes, the optimizer, checkpoints of the weights."""


@hookspec
def relax_engines() -> list[Component]:
    """Engines sample from a copy of the policy and stamp what they sample with the version of its weights."""


@hookspec
def relax_algorithms() -> list[Component]:
    """Algorithms turn rewards into advantages and a batch into a loss; pure functions of columns."""


@hookspec
def relax_transports() -> list[Component]:
    """Transports carry rows between roles: write once, lease, acknowledge."""


@hookspec
def relax_weight_syncs() -> list[Component]:
    """Weight syncs carry a publication of weights from the trainer to the engines, all or nothing."""


@hookspec
def relax_sinks() -> list[Component]:
    """Sinks receive metrics, texts and events: consoles, files, dashboards, notifiers."""


@hookspec
def relax_rewards() -> list[Component]:
    """Rewards score trajectories or groups, or abstain."""


@hookspec
def relax_datasets() -> list[Component]:
    """Datasets yield tasks in an order that can be saved and restored exactly."""


@hookspec
def relax_encoders() -> list[Component]:
    """Encoders turn images, sound and video into what a model reads, and say how long that is in a prompt."""

"""Names and import strings rot silently after a rename, unless every one of them is resolved."""

import inspect
import pickle
from dataclasses import FrozenInstanceError

import pytest

from relax_core import Component, hooks
from relax_core.api.algorithm import Algorithm
from relax_core.api.dataset import Dataset
from relax_core.api.encoder import Encoder
from relax_core.api.engine import Engine
from relax_core.api.reward import Reward
from relax_core.api.sink import Sink
from relax_core.api.trainer import Trainer
from relax_core.api.transport import Transport
from relax_core.api.weights import WeightSync
from relax_core.config import Config
from relax_core.registry import Found, load_target, registry

CONTRACTS = {
    "trainers": Trainer,
    "engines": Engine,
    "algorithms": Algorithm,
    "transports": Transport,
    "weight_syncs": WeightSync,
    "sinks": Sink,
    "rewards": Reward,
    "datasets": Dataset,
    "encoders": Encoder,
}
OFFERED = [(kind, found) for kind in hooks.KINDS for found in registry().offers(kind)]


@pytest.mark.parametrize(
    ("kind", "found"), OFFERED, ids=[f"{kind}-{found.plugin.name}/{found.component.name}" for kind, found in OFFERED]
)
def test_import_strings_lead_to_classes_of_their_kind(kind: str, found: Found) -> None:
    component = found.component
    target = load_target(component.target)
    assert issubclass(target, CONTRACTS[kind]), f"{component.target} does not derive from {CONTRACTS[kind].__name__}"
    assert not inspect.isabstract(target), f"{component.target} leaves abstract {target.__abstractmethods__}"
    assert issubclass(load_target(component.config), Config)
    assert component.summary


def test_a_component_is_plain_data_that_travels_between_processes() -> None:
    component = Component("a", "m:A", "m:B", "text")
    assert pickle.loads(pickle.dumps(component)) == component
    with pytest.raises(FrozenInstanceError):
        component.name = "b"  # type: ignore[misc]


def test_every_kind_has_a_documented_hook_and_no_hook_is_without_a_kind() -> None:
    specifications = {name: value for name, value in vars(hooks).items() if name.startswith("relax_")}
    assert set(specifications) == {f"relax_{kind}" for kind in hooks.KINDS}
    assert all(inspect.getdoc(specification) for specification in specifications.values())


def test_a_kind_is_selected_by_its_singular() -> None:
    assert [hooks.section(kind) for kind in hooks.KINDS] == [
        "trainer",
        "engine",
        "algorithm",
        "transport",
        "weight_sync",
        "sink",
        "reward",
        "dataset",
        "encoder",
    ]

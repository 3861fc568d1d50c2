"""Where roles are: device groups by mode, and what follows for loops and services."""

import pytest
from relax_algos.dpo import DPOConfig
from relax_algos.grpo import GRPOConfig
from relax_algos.opd import OPDConfig

from relax_core.config.base import Config
from relax_core.config.run import BatchConfig, SamplingConfig
from relax_core.dataflow.placement import MODES, Mode, fronts, generates_apart, lanes, place
from relax_core.dataflow.plan import HOST, Plan, derive_plan

BATCH = BatchConfig(tasks=2, samples_per_task=2, updates_per_batch=2)


def placed(mode: Mode, algorithm: Config | None = None) -> Plan:
    """Of a run with a reference and several updates per batch, unless told otherwise."""
    return place(derive_plan(algorithm or GRPOConfig(kl_coefficient=0.1), BATCH, SamplingConfig()), mode)


def groups(plan: Plan) -> dict[str, str]:
    return {role.name: role.device_group for role in plan.roles if role.device_group != HOST}


def test_colocated_models_share_one_device_group() -> None:
    assert len(set(groups(placed("colocate")).values())) == 1
    assert not generates_apart(placed("colocate"))


@pytest.mark.parametrize("before", MODES)
@pytest.mark.parametrize("mode", MODES)
def test_placing_forgets_where_roles_were(before: Mode, mode: Mode) -> None:
    assert place(placed(before), mode) == placed(mode)


def test_in_hybrid_the_rollout_alone_is_apart() -> None:
    held = groups(placed("hybrid"))
    assert held.pop("rollout") == "engine"
    assert held.keys() == {"reference", "actor_fwd", "actor"}
    assert set(held.values()) == {"trainer"}
    assert generates_apart(placed("hybrid"))


def test_fully_async_is_all_apart_but_what_has_the_weights_in_training() -> None:
    held = groups(placed("fully_async"))
    assert held["actor_fwd"] == held["actor"]
    assert len(set(held.values())) == len(held) - 1


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("colocate", {"rollout", "reward", "advantages", "actor"}),
        ("hybrid", {"rollout", "reward", "advantages", "actor"}),
        ("fully_async", {"rollout", "reward", "reference", "advantages", "actor"}),
    ],
)
def test_models_of_one_group_share_a_front_and_an_engine_has_its_own(mode: Mode, expected: set[str]) -> None:
    services = fronts(placed(mode))
    assert services.keys() == expected
    assert services["rollout"] == ("rollout",)
    trained = ("actor_fwd", "actor") if mode == "fully_async" else ("reference", "actor_fwd", "actor")
    assert services["actor"] == trained, "in the order data flows"


@pytest.mark.parametrize("mode", MODES)
def test_every_role_but_the_source_is_in_one_front_and_in_one_lane(mode: Mode) -> None:
    for plan in (placed(mode), placed(mode, OPDConfig())):
        names = sorted(role.name for role in plan.roles if role.name != "source")
        assert sorted(name for roles in fronts(plan).values() for name in roles) == names
        assert sorted(name for lane in lanes(plan) for name in lane) == names
        assert lanes(plan)[-1][-1] == "actor", "who trains is the last"


def test_supervised_stages_have_no_engine_to_be_apart_from() -> None:
    plan = placed("fully_async", DPOConfig())
    assert plan == placed("colocate", DPOConfig())
    assert fronts(plan) == {"preference": ("preference",), "actor": ("reference", "actor")}

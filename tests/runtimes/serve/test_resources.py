"""What a run needs of a cluster: counted role by role from the plan, refused with a table that says so."""

import pytest
from relax_algos.grpo import GRPOConfig
from relax_algos.sft import SFTConfig

from relax_core.api.errors import ConfigError
from relax_core.config.run import BatchConfig, RunSections, SamplingConfig
from relax_core.dataflow.placement import Mode, place
from relax_core.dataflow.plan import derive_plan
from relax_core.runtimes.serve.resources import MIB, Need, check_resources, check_shared_memory, needs

PLAN = derive_plan(GRPOConfig(kl_coefficient=0.1), BatchConfig(), SamplingConfig())
RUN = RunSections.model_validate({"serve": {"actor_ranks": 4}})
SETTINGS = {"serve.actor_ranks": 4}


def needed(mode: Mode, accelerators: int = 1) -> list[Need]:
    return needs(place(PLAN, mode), RUN, 2, accelerators, {"policy": 100 * MIB})


@pytest.mark.parametrize(
    ("mode", "groups"),
    [
        ("hybrid", {"rollout": "engine", "actor": "trainer"}),
        ("fully_async", {"rollout": "engine", "reference": "reference", "actor": "trainer"}),
    ],
)
def test_every_model_is_held_by_processes_of_its_device_group(mode: Mode, groups: dict[str, str]) -> None:
    holding = [need for need in needed(mode) if need.holders]
    assert {need.roles[-1]: need.group for need in holding} == groups
    assert all(need.accelerators == need.holders for need in holding)
    assert {name for need in needed(mode) for name in need.roles} == {role.name for role in PLAN.roles} - {"source"}


def test_a_cluster_that_has_enough_is_not_refused() -> None:
    check_resources(needed("fully_async"), {"CPU": 1.0, "GPU": 7.0}, {"CPU": 0.5, "GPU": 7.0}, SETTINGS)
    check_resources(needed("fully_async", 0), {"CPU": 1.0}, {"CPU": 1.0}, SETTINGS)


def test_the_table_tells_which_role_needs_what_and_which_keys_say_so() -> None:
    with pytest.raises(ConfigError) as refused:
        check_resources(needed("fully_async"), {"CPU": 8.0, "GPU": 8.0}, {"CPU": 8.0, "GPU": 4.0}, SETTINGS)
    first, *table = str(refused.value).splitlines()
    assert "too few accelerators free" in first
    assert "serve.actor_ranks (4)" in first
    cells = {line.split()[0]: line.split()[1:] for line in table}
    assert cells["rollout"] == ["engine", "3", "0.1", "2"]
    assert cells["reference"] == ["reference", "2", "0.1", "1"]
    assert cells["actor"] == ["trainer", "5", "0.1", "4"]
    assert cells["needed"] == ["12", "0.5", "7"]
    assert table[-2].split() == ["in", "the", "cluster", "8", "8"]
    assert table[-1].split() == ["free", "now", "8", "4"]


def test_weights_count_where_they_are_in_the_memory_of_the_host() -> None:
    on_host = needed("fully_async", 0)
    memory = {need.roles[-1]: need.memory // MIB for need in on_host}
    assert memory == {"rollout": 200, "reward": 0, "reference": 100, "advantages": 0, "actor": 400}
    assert not any(need.memory for need in needed("fully_async"))
    with pytest.raises(ConfigError, match="MiB for weights") as refused:
        check_resources(on_host, {"CPU": 8.0, "memory": 699.0 * MIB}, {"CPU": 8.0, "memory": 699.0 * MIB}, SETTINGS)
    assert "699" in str(refused.value).splitlines()[-1]
    check_resources(on_host, {"CPU": 8.0, "memory": 700.0 * MIB}, {"CPU": 8.0, "memory": 700.0 * MIB}, SETTINGS)


def test_an_engine_that_only_evaluates_counts() -> None:
    plan = derive_plan(SFTConfig(), BatchConfig(), SamplingConfig())
    alone, together = (needs(plan, RUN, engines, 1, {}) for engines in (0, 1))
    assert sum(need.accelerators for need in alone) == 4
    assert sum(need.accelerators for need in together) == 5
    assert together[0].amount("CPU") == 0


def test_few_cpus_are_refused_although_ray_only_counts_them() -> None:
    with pytest.raises(ConfigError, match="too few CPUs"):
        check_resources(needed("fully_async", 0), {"CPU": 4.0}, {"CPU": 0.4}, SETTINGS)


def test_shared_memory_is_asked_for_by_key() -> None:
    wanted = {"serve.object_store_bytes": 256 * MIB, "transport.capacity_bytes": 100 * MIB}
    check_shared_memory(wanted, 356 * MIB)
    with pytest.raises(
        ConfigError, match=r"serve.object_store_bytes \(256 MiB\) \+ transport.capacity_bytes"
    ) as refused:
        check_shared_memory(wanted, 64 * MIB)
    assert "64 MiB free" in str(refused.value)

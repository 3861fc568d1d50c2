"""What the processes of a run need of a cluster, role by role, against what is there. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relax_core.api.errors import ConfigError
from relax_core.config.run import RunSections
from relax_core.dataflow.placement import fronts
from relax_core.dataflow.plan import FROZEN, Plan

MIB = 2**20
UNITS = {"CPU": "CPUs", "GPU": "accelerators", "memory": "MiB for weights"}
"""Names of Ray's resources, and what they are called here."""


@dataclass(frozen=True)
class Need:
    """What the front of some roles needs together with the processes that hold its models.

    Args:
        roles: Their names.
        group: Their device group.
        fronts: Processes that hold no model.
        cpus: Of Ray's CPUs, for all of these.
        holders: Processes that hold one.
        accelerators: Of all holders.
        memory: Bytes of the weights that the holders keep in the memory of the host: the least they can need.
    """

    roles: tuple[str, ...]
    group: str
    fronts: int
    cpus: float
    holders: int
    accelerators: int
    memory: int

    def amount(self, resource: str) -> float:
        """How much of one of Ray's resources."""
        return {"CPU": self.cpus, "GPU": self.accelerators, "memory": self.memory}[resource]


def needs(plan: Plan, run: RunSections, engines: int, accelerators: int, weights: Mapping[str, int]) -> list[Need]:
    """What each front needs, in the order data flows; engines that only evaluate have no front.

    Args:
        plan: Roles and their device groups.
        run: How many ranks the trainer has.
        engines: How many there are.
        accelerators: That each process which holds a model has alone.
        weights: Bytes of the ``policy``'s weights, and of the ``teacher``'s.
    """
    holders = {**dict.fromkeys(FROZEN, 1), "rollout": engines, "actor": run.serve.actor_ranks}

    def need(names: tuple[str, ...], group: str, fronts: int) -> Need:
        number, cpus = holders.get(names[-1], 0), fronts * run.serve.front(names[-1]).cpus
        size = weights.get("teacher" if names[-1] == "teacher" else "policy", 0)
        return Need(names, group, fronts, cpus, number, number * accelerators, 0 if accelerators else number * size)

    roles = {role.name: role for role in plan.roles}
    found = [
        need(names, roles[front].device_group, run.serve.front(front).replicas) for front, names in fronts(plan).items()
    ]
    return found if "rollout" in roles or not engines else [need(("rollout",), "engine", 0), *found]


def check_resources(
    needed: Sequence[Need], total: Mapping[str, float], free: Mapping[str, float], settings: Mapping[str, object]
) -> None:
    """Compares what a run needs with what a cluster has.

    Args:
        needed: By front.
        total: Ray's resources of the cluster.
        free: Those that nobody has now.
        settings: Keys that decide how much is needed, and their values.

    Raises:
        ConfigError: Something is missing; a table says which role needs how much of it.
    """
    known = [name for name in UNITS if name != "memory" or name in total]
    short = [name for name in known if sum(need.amount(name) for need in needed) > free.get(name, 0.0) + 1e-6]
    if not short:
        return
    shown = [name for name in UNITS if name in short or (name != "memory" and name in total)]
    rows = [["role", "device group", "processes", *(UNITS[name] for name in shown)]]
    for need in needed:
        amounts = [_figure(name, need.amount(name)) for name in shown]
        rows.append(["+".join(need.roles), need.group, str(need.fronts + need.holders), *amounts])
    everything = [_figure(name, sum(need.amount(name) for need in needed)) for name in shown]
    rows.append(["needed", "", str(sum(need.fronts + need.holders for need in needed)), *everything])
    rows.append(["in the cluster", "", "", *(_figure(name, total.get(name, 0.0)) for name in shown)])
    rows.append(["free now", "", "", *(_figure(name, free.get(name, 0.0)) for name in shown)])
    keys = ", ".join(f"{key} ({value})" for key, value in settings.items())
    missing = " and ".join(UNITS[name] for name in short)
    raise ConfigError(f"serve: the cluster has too few {missing} free for this run; change {keys}\n{_table(rows)}")


def check_shared_memory(wanted: Mapping[str, int], free: int) -> None:
    """Compares what is to be in the shared memory of this host with what is free there.

    Args:
        wanted: Bytes by the key that says so.
        free: Bytes.

    Raises:
        ConfigError: It is too small.
    """
    if sum(wanted.values()) > free:
        parts = " + ".join(f"{key} ({size // MIB} MiB)" for key, size in wanted.items())
        raise ConfigError(
            f"serve: {parts} do not fit into /dev/shm, which has {free // MIB} MiB free; give less, or a container "
            "more (docker run --shm-size)"
        )


def _figure(resource: str, amount: float) -> str:
    return f"{amount / MIB:.0f}" if resource == "memory" else f"{amount:.4g}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )

"""Where the roles of a run are, for ``relax plan``."""

from collections.abc import Iterator

from relax_core.config.load import RunConfig
from relax_core.dataflow.placement import Mode, fronts, generates_apart, place
from relax_core.dataflow.plan import FROZEN, Plan


def describe_placement(config: RunConfig, mode: Mode) -> str:
    """Device group and processes of every role in a mode."""
    plan = place(config.plan(), mode)
    rows = [("roles", "device group", "with --runtime serve"), *_services(plan, config)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    table = [f"  {roles:<{widths[0]}}  {group:<{widths[1]}}  {processes}" for roles, group, processes in rows]
    apart = "two processes: the engine's, and that of all others" if generates_apart(plan) else "one process"
    return "\n".join([f"placement in mode {mode}; with --runtime local in {apart}", *table])


def _services(plan: Plan, config: RunConfig) -> Iterator[tuple[str, str, str]]:
    serve = config.run.serve
    counts = {"rollout": serve.engines, "actor": serve.actor_ranks, **dict.fromkeys(FROZEN, 1)}
    for front, roles in fronts(plan).items():
        last = plan.role(front)
        assert last is not None, "a front has the name of its last role"
        name = "engine" if front == "rollout" else front
        ranks = ", ".join(f"{name}-{number}" for number in range(counts.get(front, 0)))
        yield ", ".join(roles), last.device_group, f"front {front}" + (f"; {ranks}" if ranks else "")

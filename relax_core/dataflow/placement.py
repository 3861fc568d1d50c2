"""Placement: a mode is nothing but the device group of each role. Roles of one group hold it in turn."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, get_args

from relax_core.dataflow.plan import HOST, Plan

Mode = Literal["colocate", "hybrid", "fully_async"]
MODES: tuple[Mode, ...] = get_args(Mode)

SHARED = "model"
"""The only device group of ``colocate``, and of a plan that is not placed."""

GROUPS: Mapping[Mode, Mapping[str, str]] = {
    "colocate": {},
    "hybrid": {
        "rollout": "engine",
        "reference": "trainer",
        "teacher": "trainer",
        "actor_fwd": "trainer",
        "actor": "trainer",
    },
    "fully_async": {
        "rollout": "engine",
        "reference": "reference",
        "teacher": "teacher",
        "actor_fwd": "trainer",
        "actor": "trainer",
    },
}
"""Device groups of the roles that hold a model; those that compute with the weights in training share one."""


def place(plan: Plan, mode: Mode) -> Plan:
    """The plan with the device groups of a mode; ``colocate``, with one of them, is how a plan is derived."""
    if plan.requirements.supervised:
        return plan
    groups = GROUPS[mode]
    roles = (
        role if role.device_group == HOST else replace(role, device_group=groups.get(role.name, SHARED))
        for role in plan.roles
    )
    return replace(plan, roles=tuple(roles))


def generates_apart(plan: Plan) -> bool:
    """Whether the engine has a device group of its own, beside that of the trainer."""
    rollout, actor = plan.role("rollout"), plan.role("actor")
    return rollout is not None and actor is not None and rollout.device_group != actor.device_group


def publishes_beside(plan: Plan, max_staleness: int, wanted: bool | None) -> bool:
    """Whether weights may travel to engines while the next batch is trained.

    Args:
        plan: With the device groups of a mode.
        max_staleness: At 0 no next batch begins before the weights have arrived.
        wanted: As configured; ``None`` is wherever it is possible.
    """
    return generates_apart(plan) and max_staleness > 0 and wanted is not False


def takes_turns(plan: Plan, accelerated: bool, wanted: bool | None) -> bool:
    """Whether engine and trainer give their memory back while it is the other's turn.

    Args:
        plan: With the device groups of a mode.
        accelerated: Whether models are on a device whose memory is its own.
        wanted: As configured; ``None`` is wherever it makes room.
    """
    return not generates_apart(plan) and (accelerated if wanted is None else wanted)


def lanes(plan: Plan) -> list[list[str]]:
    """Names of the roles that work one after the other, in the order data flows; the lane of the actor is the last.

    A role that needs no device has a lane of its own. The source is no loop.
    """
    return list(_parted(plan, apart=frozenset()).values())


def fronts(plan: Plan) -> dict[str, tuple[str, ...]]:
    """The roles of each service, in the order data flows, by the name of the last of them.

    As :func:`lanes`, but that the rollout is apart from trainers in any case: an engine has processes of its own.
    """
    return {names[-1]: tuple(names) for names in _parted(plan, apart=frozenset({"rollout"})).values()}


def _parted(plan: Plan, apart: frozenset[str]) -> dict[str, list[str]]:
    """Roles by what they share: a device group, or nothing."""
    parts: dict[str, list[str]] = {}
    for role in plan.roles:
        if role.name != "source":
            alone = role.device_group == HOST or role.name in apart
            parts.setdefault(role.name if alone else f"[{role.device_group}]", []).append(role.name)
    return dict(sorted(parts.items(), key=lambda part: "actor" in part[1]))

"""Placement: a mode is nothing but the device group of each role. Roles of one group hold it in turn."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from relax_core.dataflow.plan import HOST, Plan

Mode = Literal["colocate", "hybrid", "fully_async"]

APART: Mapping[str, str] = {
    "rollout": "engine",
    "reference": "reference",
    "teacher": "teacher",
    "actor_fwd": "trainer",
    "actor": "trainer",
}
"""Device groups where every model has its own; those that compute with the weights in training share one."""


def place(plan: Plan, mode: Mode) -> Plan:
    """The plan with the device groups of a mode; ``colocate`` is how a plan is derived."""
    if mode == "colocate" or plan.requirements.supervised:
        return plan
    return replace(
        plan,
        roles=tuple(
            role if role.device_group == HOST else replace(role, device_group=APART[role.name]) for role in plan.roles
        ),
    )


def lanes(plan: Plan) -> list[list[str]]:
    """Names of the roles that work one after the other, in the order data flows; the lane of the actor is the last.

    A role that needs no device has a lane of its own. The source is no loop.
    """
    groups: dict[str, list[str]] = {}
    for role in plan.roles:
        if role.name != "source":
            groups.setdefault(role.name if role.device_group == HOST else f"[{role.device_group}]", []).append(
                role.name
            )
    return sorted(groups.values(), key=lambda names: "actor" in names)

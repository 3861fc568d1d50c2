"""Registers the algorithm."""

from relax_core import Component, hookimpl


@hookimpl
def relax_algorithms() -> list[Component]:
    """The one algorithm of this plugin."""
    return [
        Component("leave_one_out", "relax_rloo.rloo:RLOO", "relax_rloo.config:RLOOConfig", "Leave-one-out baseline.")
    ]

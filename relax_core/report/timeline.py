"""What each role did when, as the page shows it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_core.metrics.timeline import WAIT
from relax_core.report.cover import Cover
from relax_core.report.files import evenly

ROLES = (
    "source",
    "rollout",
    "reward",
    "reference",
    "teacher",
    "actor_fwd",
    "advantages",
    "actor",
    "engine",
    "weights",
    "evaluator",
    "checkpoint",
)
OWN_KEYS = frozenset({"role", "name", "start", "end", "update", "process"})
MAX_SPANS = 8000
"""Spans that a page shows; of more it shows those of some stretches of updates."""

STRETCH = 8
"""Neighbouring updates of such a stretch."""


@dataclass(frozen=True)
class Step:
    """The time of one update: from the end of the one before to its own end.

    Args:
        update: Its number, from 1.
        start: Unix seconds.
        end: Unix seconds.
    """

    update: int
    start: float
    end: float


def find_steps(spans: Sequence[Mapping[str, Any]]) -> list[Step]:
    """The updates of the main stage, ascending.

    Where their number goes back a resumed run, or the main stage after a warm-up, begins anew: what was beyond is void.
    The time between two sittings, when no role works, belongs to no update.
    """
    working = Cover.of(span for span in spans if span["name"] != WAIT)
    steps: list[Step] = []
    before = -np.inf
    updates = [span for span in spans if span["role"] == "actor" and span["name"] == "update"]
    for span in sorted(updates, key=lambda span: float(span["end"])):
        update = span["update"] + 1
        while steps and steps[-1].update >= update:
            steps.pop()
        place = int(np.searchsorted(working.ends, before, side="right"))
        steps.append(Step(update, max(before, float(working.starts[place])), span["end"]))
        before = span["end"]
    return steps


def timeline_of(spans: Sequence[Mapping[str, Any]], steps: Sequence[Step]) -> dict[str, Any]:
    """The timeline for the page: times are seconds since ``origin``; ``total`` is the number of spans there are.

    Of more than :data:`MAX_SPANS` those of some stretches of neighbouring updates are kept, first and last among them.
    """
    origin = min((span["start"] for span in spans), default=0.0)
    shown, kept = _bounded(spans, steps)
    return {
        "origin": origin,
        "lanes": lanes_of(kept),
        "steps": [[step.update, round(step.start - origin, 4), round(step.end - origin, 4)] for step in shown],
        "spans": [_row(span, origin) for span in sorted(kept, key=lambda span: float(span["start"]))],
        "total": len(spans),
        "total_steps": len(steps),
    }


def lanes_of(spans: Iterable[Mapping[str, Any]]) -> list[str]:
    """The lanes of some spans: in the order in which data flows, processes of a role behind one another."""
    order = {role: place for place, role in enumerate(ROLES)}
    found = {(order.get(span["role"], len(order)), lane_of(span)) for span in spans}
    return [lane for _, lane in sorted(found)]


def lane_of(span: Mapping[str, Any]) -> str:
    """Where a span is drawn: the role, or which process of it, or the role within a process of another name."""
    role, process = str(span["role"]), str(span.get("process", span["role"]))
    return process if process == role or process.startswith(f"{role}-") else f"{process}: {role}"


def _bounded(
    spans: Sequence[Mapping[str, Any]], steps: Sequence[Step]
) -> tuple[Sequence[Step], Sequence[Mapping[str, Any]]]:
    if len(spans) <= MAX_SPANS or not steps:
        return steps, spans[-MAX_SPANS:]
    stretches = [steps[place : place + STRETCH] for place in range(0, len(steps), STRETCH)]
    chosen = evenly(stretches, max(1, len(stretches) * MAX_SPANS // len(spans)))
    times = Cover.of([{"start": stretch[0].start, "end": stretch[-1].end} for stretch in chosen])
    inside = times.within([span["start"] for span in spans], [span["end"] for span in spans]) > 0
    kept = [span for span, wanted in zip(spans, inside, strict=True) if wanted]
    return [step for stretch in chosen for step in stretch], kept


def _row(span: Mapping[str, Any], origin: float) -> dict[str, Any]:
    times = {"start": round(span["start"] - origin, 4), "end": round(span["end"] - origin, 4)}
    facts = {key: value for key, value in span.items() if key not in OWN_KEYS}
    return {"lane": lane_of(span), "name": span["name"], **times, "update": span.get("update"), "facts": facts}

"""What each role did when: the spans of ``timeline.jsonl``, and how much of the time roles worked together."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relax_core.report.files import evenly

Seconds = npt.NDArray[np.float64]

ROLES = (
    "source",
    "rollout",
    "reward",
    "reference",
    "teacher",
    "actor_fwd",
    "advantages",
    "actor",
    "evaluator",
    "checkpoint",
)
UPDATING = frozenset({"accumulate", "update"})
"""What the actor does for an update; a batch that streams is accumulated piece by piece before it."""

OWN_KEYS = frozenset({"role", "name", "start", "end", "update"})
MAX_SPANS = 8000
"""Spans that a page shows; of more it shows those of some stretches of updates."""

STRETCH = 8
"""Neighbouring updates of such a stretch."""


@dataclass(frozen=True)
class Cover:
    """Times at which something happened: disjoint intervals, ascending.

    Args:
        starts: float64 ``[n]`` seconds.
        ends: float64 ``[n]`` seconds.
    """

    starts: Seconds
    ends: Seconds

    @classmethod
    def of(cls, spans: Sequence[Mapping[str, Any]]) -> "Cover":
        """The union of spans with ``start`` and ``end``."""
        ordered = sorted((float(span["start"]), float(span["end"])) for span in spans)
        merged: list[list[float]] = []
        for start, end in ordered:
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        times = np.array(merged, np.float64).reshape(-1, 2)
        return cls(times[:, 0], times[:, 1])

    def until(self, times: npt.ArrayLike) -> Seconds:
        """Covered seconds before each of some times, of the shape of ``times``."""
        moments = np.asarray(times, np.float64)
        if not len(self.starts):
            return np.zeros_like(moments)
        borders = np.stack([self.starts, self.ends], axis=1).reshape(-1)
        covered = np.concatenate([[0.0], np.cumsum(self.ends - self.starts)])
        return np.interp(moments, borders, np.repeat(covered, 2)[1:-1])

    def within(self, start: npt.ArrayLike, end: npt.ArrayLike) -> Seconds:
        """Covered seconds between two times."""
        return self.until(end) - self.until(start)

    def both(self, other: "Cover") -> float:
        """Seconds that two covers share."""
        return float(np.sum(other.within(self.starts, self.ends)))

    @property
    def seconds(self) -> float:
        """Covered seconds."""
        return float(np.sum(self.ends - self.starts))


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
    working = Cover.of(spans)
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


def overlap(spans: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """How much rollout and actor worked at once.

    ``seconds`` is the time in which any role worked; ``rollout``, ``actor`` and ``both`` are shares of it, and
    ``actor_waiting`` is what is left of it beside the actor. ``tokens_during_updates`` is an estimate: each rollout
    span's tokens times the part of the span in which an update ran. ``None`` where a number has no meaning.
    """
    working = Cover.of(spans).seconds
    generating = [span for span in spans if span["role"] == "rollout"]
    acting = [span for span in spans if span["role"] == "actor"]
    updating = Cover.of([span for span in acting if span["name"] in UPDATING])
    rollout, actor = Cover.of(generating), Cover.of(acting)
    lengths = {
        "rollout": rollout.seconds,
        "actor": actor.seconds,
        "both": rollout.both(actor),
        "actor_waiting": working - actor.seconds,
    }
    shares: dict[str, float | None] = {name: value / working if working else None for name, value in lengths.items()}
    return {"seconds": working, **shares, **_tokens(generating, updating)}


def _tokens(generating: Iterable[Mapping[str, Any]], updating: Cover) -> dict[str, float | None]:
    counted = [(span["start"], span["end"], span["tokens"]) for span in generating if "tokens" in span]
    starts, ends, tokens = np.array(counted, np.float64).reshape(-1, 3).T
    lengths = ends - starts
    shares = np.divide(updating.within(starts, ends), lengths, out=np.zeros_like(lengths), where=lengths > 0)
    generated = float(tokens.sum())
    return {
        "tokens": generated if counted else None,
        "tokens_during_updates": float(np.sum(tokens * shares)) if counted else None,
    }


def timeline_of(spans: Sequence[Mapping[str, Any]], steps: Sequence[Step]) -> dict[str, Any]:
    """The timeline for the page: times are seconds since ``origin``; ``total`` is the number of spans there are.

    Of more than :data:`MAX_SPANS` those of some stretches of neighbouring updates are kept, first and last among them.
    """
    origin = min((span["start"] for span in spans), default=0.0)
    shown, kept = _bounded(spans, steps)
    found = {span["role"] for span in kept}
    roles = [role for role in ROLES if role in found] + sorted(found - {*ROLES})
    return {
        "origin": origin,
        "roles": roles,
        "steps": [[step.update, round(step.start - origin, 4), round(step.end - origin, 4)] for step in shown],
        "spans": [_row(span, origin) for span in sorted(kept, key=lambda span: float(span["start"]))],
        "total": len(spans),
        "total_steps": len(steps),
    }


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
    return {"role": span["role"], "name": span["name"], **times, "update": span.get("update"), "facts": facts}

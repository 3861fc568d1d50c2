"""How much of a run's time went into what, and how much of it roles worked at once."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from relax_core.metrics.activity import PAUSES
from relax_core.metrics.timeline import WAIT
from relax_core.report.cover import Cover

UPDATING = frozenset({"accumulate", "update"})
"""What the actor does for an update; a batch that streams is accumulated piece by piece before it."""

SYNC = frozenset({"publish"})


def overlap(spans: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """What the time went into, for the run as a whole.

    * ``seconds``: time in which any role worked. All that follow are shares of it.
    * ``rollout``, ``actor``, ``both``: a group was being generated; the actor worked; both at once.
    * ``training``, ``sync``: the actor accumulated or updated; it published.
    * ``actor_waiting``: what is left of the time beside the actor's work.
    * ``paused``: an evaluation or a checkpoint ran.
    * ``data_wait``: the actor waited for rows, pauses apart: ``perf/data_wait_s`` of all updates, less the time in
      which no role worked; ``exposed``: generation in these waits, what ``perf/rollout_exposed_s`` adds up to. ``None``
      where no wait is on record.
    * ``bound``: what the same work takes at least where roles work at the same time: the longer one of generation and
      of the actor's work.

    ``tokens_during_updates`` is an estimate: each rollout span's tokens times the part of the span in which an update
    ran. ``None`` where a number has no meaning.
    """
    worked = [span for span in spans if span["name"] != WAIT]
    generating = [span for span in worked if span["role"] == "rollout"]
    acting = [span for span in worked if span["role"] == "actor"]
    updating = Cover.of(span for span in acting if span["name"] in UPDATING)
    rollout, actor, working = Cover.of(generating), Cover.of(acting), Cover.of(worked)
    seconds = working.seconds
    lengths = {
        "rollout": rollout.seconds,
        "actor": actor.seconds,
        "both": rollout.both(actor),
        "training": updating.seconds,
        "sync": Cover.of(span for span in acting if span["name"] in SYNC).seconds,
        "actor_waiting": seconds - actor.seconds,
        "paused": pauses(spans).seconds,
        "bound": max(rollout.seconds, actor.seconds),
    }
    shares: dict[str, float | None] = {name: value / seconds if seconds else None for name, value in lengths.items()}
    shares |= {"data_wait": None, "exposed": None}
    if seconds and any(_is_data_wait(span) for span in spans):
        waits = data_waits(spans).common(working)
        shares |= {"data_wait": waits.seconds / seconds, "exposed": waits.both(rollout) / seconds}
    return {"seconds": seconds, **shares, **_tokens(generating, updating)}


def pauses(spans: Iterable[Mapping[str, Any]]) -> Cover:
    """Evaluations and checkpoints."""
    return Cover.of(span for span in spans if span["name"] in PAUSES)


def data_waits(spans: Sequence[Mapping[str, Any]]) -> Cover:
    """Times at which the actor waited for rows, and the run was not paused."""
    return Cover.of(span for span in spans if _is_data_wait(span)).without(pauses(spans))


def _is_data_wait(span: Mapping[str, Any]) -> bool:
    return bool(span["role"] == "actor" and span["name"] == WAIT)


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

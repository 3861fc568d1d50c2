"""The first lines of a report: what was run, and what came out."""

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from relax_core.report.charts import Streams

Fact = tuple[str, str]
REWARD_OF_SET = re.compile(r"eval/(?:(.+)/)?reward")


def overview(
    config: Mapping[str, Any],
    summary: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
    streams: Streams,
    time_shares: Mapping[str, float | None],
) -> list[Fact]:
    """Names and values, in order; without what is not known (yet).

    Args:
        config: The run's configuration.
        summary: That of its last sitting, empty while it is going on; see
            :func:`relax_core.report.files.read_summary`.
        lines: Its ``metrics.jsonl``.
        streams: The same, joined by :func:`relax_core.report.charts.join_steps`.
        time_shares: What :func:`relax_core.report.overlap.overlap` found.
    """
    before = summary.get("eval_warm_start")
    facts = {
        "status": summary.get("status", "no summary of the last sitting: still going, or killed"),
        "algorithm": _name(config.get("algorithm")),
        "mode": config.get("mode"),
        "max staleness": config.get("max_staleness"),
        "runtime": summary.get("runtime"),
        "model": _model(config),
        "seed": config.get("seed"),
        "started": time.strftime("%Y-%m-%d %H:%M", time.localtime(lines[0]["time"])) if lines else None,
        "duration": duration(summary.get("wall_s", time_shares.get("seconds"))),
        "time": _time(time_shares),
        "bound": _bound(time_shares),
        "updates": _of(summary.get("updates", _last_step(streams)), config.get("updates")),
        **_evaluations(streams),
        "before warm-up": None if before is None else f"{before:.3f}",
        "training reward": _change([summary.get("reward_first10"), summary.get("reward_last10")]),
        "largest lag": summary.get("max_lag"),
        "tasks": _tasks(summary),
        "counters": _listed(summary.get("counters")),
    }
    return [(name, str(value)) for name, value in facts.items() if value is not None]


def duration(seconds: float | None) -> str | None:
    """Seconds as people read them: ``42.0 s``, ``3 min 07 s``, ``2 h 05 min``."""
    if seconds is None:
        return None
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


TIMES = {
    "rollout": "generation",
    "training": "training",
    "sync": "publication",
    "data_wait": "data wait",
    "exposed": "exposed generation",
    "paused": "evaluation and checkpoints",
}
"""Shares of the time, as the overview names them; they overlap."""


def _time(shares: Mapping[str, float | None]) -> str | None:
    known = ((title, shares.get(name)) for name, title in TIMES.items())
    return ", ".join(f"{title} {share:.0%}" for title, share in known if share is not None) or None


def _bound(shares: Mapping[str, float | None]) -> str | None:
    """Generation, or the actor's work, whichever is longer, cannot be hidden behind anything."""
    bound = shares.get("bound")
    if bound is None:
        return None
    longer = "generation" if bound == shares["rollout"] else "training and publication"
    return f"{bound:.0%} of the time: {longer} alone"


def _name(choice: object) -> object:
    return choice.get("name") if isinstance(choice, Mapping) else choice


def _model(config: Mapping[str, Any]) -> str | None:
    model = config.get("model") or {}
    return model.get("path") or (f"{model['init'].get('model_type')}, random weights" if model.get("init") else None)


def _last_step(streams: Streams) -> int | None:
    return max(streams["train"], default=None) if "train" in streams else None


def _of(done: object, planned: object) -> str | None:
    return None if done is None else str(done) if planned in (None, done) else f"{done} of {planned}"


def _evaluations(streams: Streams) -> dict[str, str | None]:
    """First and last held-out reward of each set."""
    found: dict[str, list[float]] = defaultdict(list)
    for metrics in streams.get("eval", {}).values():
        for name, value in metrics.items():
            if value is not None and (match := REWARD_OF_SET.fullmatch(name)):
                found[f"held-out reward {match[1] or ''}".strip()].append(value)
    return {title: _change([values[0], values[-1]]) for title, values in found.items()}


def _change(values: Iterable[float | None]) -> str | None:
    return " → ".join(f"{value:.3f}" for value in values if value is not None) or None


def _tasks(summary: Mapping[str, Any]) -> str | None:
    names = [name for name in ("issued", "trained", "dropped", "pending") if name in summary]
    text = ", ".join(f"{summary[name]:,} {name}" for name in names)
    reasons = _listed(summary.get("dropped_reasons"))
    return (f"{text} ({reasons})" if reasons else text) or None


def _listed(counts: Mapping[str, int] | None) -> str | None:
    return ", ".join(f"{name} {count:,}" for name, count in (counts or {}).items()) or None

"""The first lines of a report: what was run, and what came out."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

Fact = tuple[str, str]


def overview(config: Mapping[str, Any], summary: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> list[Fact]:
    """Names and values, in order; without what is not known (yet).

    Args:
        config: The run's configuration.
        summary: Its ``summary.json``, empty while it is going on.
        lines: Its ``metrics.jsonl``.
    """
    facts = {
        "status": summary.get("status", "no summary: still going, or killed"),
        "algorithm": _name(config.get("algorithm")),
        "mode": config.get("mode"),
        "max staleness": config.get("max_staleness"),
        "runtime": summary.get("runtime"),
        "model": _model(config),
        "seed": config.get("seed"),
        "started": time.strftime("%Y-%m-%d %H:%M", time.localtime(lines[0]["time"])) if lines else None,
        "duration": duration(_seconds(summary, lines)),
        "updates": _of(summary.get("updates", _last_step(lines)), config.get("updates")),
        "held-out reward": _change(summary, "eval_first", "eval_last"),
        "before warm-up": _number(summary.get("eval_warm_start")),
        "training reward": _change(summary, "reward_first10", "reward_last10"),
        "largest lag": summary.get("max_lag"),
        "tasks": _tasks(summary),
    }
    counters = {f"count: {name}": value for name, value in summary.get("counters", {}).items()}
    return [(name, str(value)) for name, value in {**facts, **counters}.items() if value is not None]


def duration(seconds: float | None) -> str | None:
    """Seconds as people read them: ``42.0 s``, ``3 min 07 s``, ``2 h 05 min``."""
    if seconds is None:
        return None
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _name(choice: object) -> object:
    return choice.get("name") if isinstance(choice, Mapping) else choice


def _model(config: Mapping[str, Any]) -> str | None:
    model = config.get("model") or {}
    return model.get("path") or (f"{model['init'].get('model_type')}, random weights" if model.get("init") else None)


def _seconds(summary: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> float | None:
    if "wall_s" in summary:
        return float(summary["wall_s"])
    return float(lines[-1]["time"] - lines[0]["time"]) if lines else None


def _last_step(lines: Sequence[Mapping[str, Any]]) -> int | None:
    return max((line["step"] for line in lines if line["stream"] == "train"), default=None)


def _of(done: object, planned: object) -> str | None:
    return None if done is None else str(done) if planned in (None, done) else f"{done} of {planned}"


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


def _change(summary: Mapping[str, Any], first: str, last: str) -> str | None:
    known = [f"{summary[name]:.3f}" for name in (first, last) if summary.get(name) is not None]
    return " → ".join(known) or None


def _tasks(summary: Mapping[str, Any]) -> str | None:
    names = [name for name in ("issued", "trained", "dropped", "pending") if name in summary]
    text = ", ".join(f"{summary[name]:,} {name}" for name in names)
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in (summary.get("dropped_reasons") or {}).items())
    return (f"{text} ({reasons})" if reasons else text) or None

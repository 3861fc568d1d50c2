"""The numbers of ``metrics.jsonl`` as series, and the charts that stand first in a report."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from relax_core.report.files import evenly

Streams = Mapping[str, Mapping[int, Mapping[str, float | None]]]
"""Stream, step, metric."""

NOT_METRICS = frozenset({"stream", "step", "time", "non_finite"})
MAX_POINTS = 2000
"""Steps of a stream that a page shows; of more it shows some at equal distances."""

DIGITS = 6


@dataclass(frozen=True)
class Panel:
    """One chart over the updates of the main stage.

    Args:
        title: What it shows.
        metrics: Names, or patterns with ``*``, of the metrics it may hold.
        about: One sentence for people who do not know the metric.
    """

    title: str
    metrics: tuple[str, ...]
    about: str


PANELS = (
    Panel("Reward", ("rollout/reward",), "Mean reward of the answers that an update trained on"),
    Panel("Evaluation", ("eval/reward", "eval/*/reward"), "Mean reward on tasks that are never trained on"),
    Panel("Response length", ("rollout/response_tokens", "rollout/response_tokens_max"), "Tokens of an answer"),
    Panel("Entropy", ("train/entropy",), "Of the distribution each token was drawn from, in nats"),
    Panel("Distance to the teacher", ("train/kl_teacher",), "KL of the policy to its teacher, estimated, per token"),
    Panel("Margin", ("train/margin",), "Reward of the chosen answers above that of the rejected ones"),
    Panel("Clip fraction", ("train/clip_fraction*",), "Share of tokens whose gradient a clip cut off"),
    Panel("Gradient norm", ("train/grad_norm",), "Of the whole gradient, before clipping"),
    Panel("Mismatch KL", ("mismatch/kl",), "KL of the policy that sampled to the trainer's, lag included, per token"),
    Panel("Probe gap", ("mismatch/probe_max",), "Largest difference of a log-probability, engine to trainer, in nats"),
    Panel("Lag", ("*/lag", "*/lag_*"), "Publications between a trained token and the trainer"),
    Panel("Throughput", ("perf/rollout_tokens_per_s", "perf/train_tokens_per_s"), "Tokens per second"),
    Panel(
        "Data wait", ("perf/data_wait_s", "perf/rollout_exposed_s"), "Seconds the actor waited, and generation in them"
    ),
    Panel("Publication", ("sync/*_s",), "Seconds by which weights reached the engines"),
    Panel("Loss", ("train/loss",), "Of the update, over all its tokens"),
    Panel("Queue", ("*/queued*", "queue/groups", "queue/ready/*"), "Groups on their way to the trainer"),
)
STREAMS = ("train", "eval")
"""Streams whose steps are updates of the main stage."""


def join_steps(lines: Iterable[Mapping[str, Any]]) -> Streams:
    """The metrics of each step of each stream, ascending.

    Where the steps of a stream go back, a resumed run begins anew: what was beyond is void. Lines of one step are
    joined; of a metric that comes twice the last counts.
    """
    streams: dict[str, dict[int, dict[str, float | None]]] = defaultdict(dict)
    for line in lines:
        steps = streams[line["stream"]]
        while steps and next(reversed(steps)) > line["step"]:
            steps.popitem()
        values = {name: value for name, value in line.items() if name not in NOT_METRICS}
        steps.setdefault(line["step"], {}).update(values)
    return streams


def series_of(steps: Mapping[int, Mapping[str, float | None]]) -> dict[str, Any]:
    """A stream as columns: its ``steps``, ``metrics`` with a value or ``None`` for each of them, and ``total``, the
    number of steps there are."""
    shown = evenly(list(steps), MAX_POINTS)
    names = sorted({name for values in steps.values() for name, value in values.items() if value is not None})
    metrics = {name: [_rounded(steps[step].get(name)) for step in shown] for name in names}
    return {"steps": shown, "metrics": metrics, "total": len(steps)}


def choose_panels(series: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The charts of :data:`PANELS` that have a metric, in their order, each with its ``lines``."""
    tags = [(stream, name) for stream in STREAMS if stream in series for name in series[stream]["metrics"]]
    panels = []
    for panel in PANELS:
        lines = [
            {"stream": stream, "metric": name}
            for pattern in panel.metrics
            for stream, name in tags
            if fnmatchcase(name, pattern)
        ]
        if lines:
            panels.append({"title": panel.title, "about": panel.about, "lines": lines})
    return panels


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")

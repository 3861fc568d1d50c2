"""One HTML file from a run's folder."""

import json
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from relax_core.checkpoint.batches import BATCHES
from relax_core.checkpoint.files import write_output
from relax_core.checkpoint.run_directory import CONFIG
from relax_core.checkpoint.store import POLICY, CheckpointStore
from relax_core.config.document import read_document
from relax_core.report.charts import Streams, choose_panels, join_steps, series_of
from relax_core.report.files import read_lines, read_summary
from relax_core.report.overlap import overlap
from relax_core.report.overview import overview
from relax_core.report.samples import read_samples
from relax_core.report.spans import read_spans
from relax_core.report.timeline import find_steps, timeline_of
from relax_core.report.tokens import TokenTexts, find_tokenizer

SCRIPTS = ("elements", "state", "scales", "charts", "metrics", "gantt", "timeline", "colors", "samples", "page")
"""In the order they run."""

MAX_EVENTS = 500
"""Last lines of ``events.jsonl`` and ``evaluations.jsonl`` that a page shows."""

MAX_ANSWERS = 100
"""Last lines of ``samples.jsonl`` that a page shows."""


def write_report(run: Path, output: Path) -> None:
    """Writes the report of a run.

    Args:
        run: The run's folder.
        output: The HTML file.

    Raises:
        ConfigError: The HTML file cannot be written.
        RelaxError: A file of the run is damaged; names it.
    """
    write_output(output, render(report_data(run)))


def report_data(run: Path) -> dict[str, Any]:
    """Everything that the page shows, as JSON values."""
    config = read_document(run / CONFIG)
    lines = read_lines(run / "metrics.jsonl")
    spans = read_spans(run)
    streams, steps = join_steps(lines), find_steps(spans)
    series = {stream: series_of(metrics) for stream, metrics in streams.items()}
    texts, time = _tokenizer(run, config), overlap(spans)
    return {
        "run": run.name,
        "overview": overview(config, read_summary(run, lines), lines, streams, time),
        "panels": choose_panels(series),
        "series": series,
        "timeline": timeline_of(spans, steps),
        "overlap": {**time, "tokens_counted": _tokens_counted(streams)},
        "samples": read_samples(run / BATCHES, texts.text if texts else None),
        "answers": read_lines(run / "samples.jsonl")[-MAX_ANSWERS:],
        "events": read_lines(run / "events.jsonl")[-MAX_EVENTS:],
        "evaluations": read_lines(run / "evaluations.jsonl")[-MAX_EVENTS:],
        "config": (run / CONFIG).read_text(encoding="utf-8"),
    }


def render(data: dict[str, Any]) -> str:
    """The page with its style, its scripts and its data in one text."""
    folder = files("relax_core.report") / "page"
    # Only ASCII, and no "<": nothing that a model wrote can end the script element or begin a comment in it.
    content = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return Template((folder / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(data["run"]),
        style=(folder / "page.css").read_text(encoding="utf-8"),
        data=content,
        script="\n".join((folder / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS),
    )


def _tokenizer(run: Path, config: dict[str, Any]) -> TokenTexts | None:
    checkpoint = CheckpointStore(run / "checkpoints", keep=1).latest()
    model = (config.get("model") or {}).get("path")
    folders = [checkpoint.path / POLICY] if checkpoint else []
    return find_tokenizer([*folders, run / "model", *([Path(model)] if model else [])])


def _tokens_counted(streams: Streams) -> float | None:
    """Tokens that the run itself counted while its updates ran."""
    counts = [metrics.get("perf/tokens_during_update") for metrics in streams.get("train", {}).values()]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None

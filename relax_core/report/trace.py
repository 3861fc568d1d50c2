"""The timeline of a run as a file for Perfetto (https://ui.perfetto.dev) or chrome://tracing.

The form is the Trace Event Format: JSON with times in microseconds. Complete events (``X``) do not overlap on a thread;
metadata (``M``) holds the names of processes and threads; flows (``s`` to ``f``) lead from a group's generation to its
update.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from relax_core.checkpoint.files import write_output
from relax_core.checkpoint.run_directory import LEDGER
from relax_core.report.files import read_lines
from relax_core.report.spans import read_spans
from relax_core.report.timeline import OWN_KEYS, lane_of, lanes_of

Span = Mapping[str, Any]
Event = dict[str, Any]


def write_trace(run: Path, output: Path) -> None:
    """Writes the trace of a run.

    Args:
        run: The run's folder.
        output: The JSON file.

    Raises:
        ConfigError: The JSON file cannot be written.
        RelaxError: A file of the run is damaged; names it.
    """
    ledger = read_lines(run / f"{LEDGER}.jsonl")
    trained = {line["group"]: line["update"] for line in ledger if line["event"] == "trained"}
    events = trace_events(read_spans(run), trained, run.name)
    write_output(output, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, allow_nan=False))


def trace_events(spans: Sequence[Span], trained: Mapping[int, int], run: str) -> list[Event]:
    """The events of a trace.

    Args:
        spans: Of all processes.
        trained: The update that trained a group, by group.
        run: What the process is called whose spans name none.
    """
    origin = min((span["start"] for span in spans), default=0.0)
    processes: dict[str, int] = {}
    threads: list[Event] = []
    slices: list[tuple[Span, Event]] = []
    for lane in lanes_of(spans):
        for slot in _slots(span for span in spans if lane_of(span) == lane):
            process = str(slot[0].get("process", run))
            place = {"pid": processes.setdefault(process, len(processes) + 1), "tid": len(threads) + 1}
            threads.append(_named("thread", lane, place))
            slices += [(span, _slice(span, origin, place)) for span in slot]
    names = [_named("process", process, {"pid": pid, "tid": 0}) for process, pid in processes.items()]
    return [
        *chain.from_iterable(map(_ordered, names + threads)),
        *(event for _, event in slices),
        *_flows(slices, trained),
    ]


def _slots(spans: Iterable[Span]) -> list[list[Span]]:
    """Spans in as few lists as possible, so that those of one list do not overlap."""
    slots: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (float(span["start"]), float(span["end"]))):
        free = next((slot for slot in slots if slot[-1]["end"] <= span["start"]), None)
        if free is None:
            slots.append([span])
        else:
            free.append(span)
    return slots


def _slice(span: Span, origin: float, place: Mapping[str, int]) -> Event:
    facts = {key: value for key, value in span.items() if key not in OWN_KEYS}
    return {
        "ph": "X",
        "name": span["name"],
        "cat": span["role"],
        "ts": _microseconds(span["start"] - origin),
        "dur": _microseconds(span["end"] - origin) - _microseconds(span["start"] - origin),
        **place,
        "args": {"updates done": span["update"], **facts},
    }


def _microseconds(seconds: float) -> int:
    """Whole ones: the clock of spans is not finer, and their sums have no rounding by which two spans overlap."""
    return round(seconds * 1e6)


def _named(kind: str, name: str, place: Mapping[str, int]) -> Event:
    return {"ph": "M", "name": f"{kind}_name", **place, "args": {"name": name}}


def _ordered(named: Event) -> tuple[Event, Event]:
    """A name, and the place in the order in which they were found."""
    kind = str(named["name"]).removesuffix("_name")
    index = named["tid"] if kind == "thread" else named["pid"]
    return named, {**named, "name": f"{kind}_sort_index", "args": {"sort_index": index}}


def _flows(slices: Sequence[tuple[Span, Event]], trained: Mapping[int, int]) -> Iterator[Event]:
    """From the end of a group's generation to the beginning of the update that was the last to use it."""
    generated: dict[int, Event] = {}
    updates: dict[int, Event] = {}
    for span, event in slices:
        if span["role"] == "rollout" and "group" in span:
            generated[span["group"]] = event
        elif span["role"] == "actor" and span["name"] == "update":
            updates[span["update"] + 1] = event
    for group, update in trained.items():
        if group in generated and update in updates:
            start, end = generated[group], updates[update]
            flow = {"name": "group", "cat": "flow", "id": group}
            # A flow belongs to the slice that is open at its time: not at the very end of one, nor at its beginning.
            yield {**flow, "ph": "s", "ts": start["ts"] + max(0, start["dur"] - 1), **_place(start)}
            yield {**flow, "ph": "f", "bp": "e", "ts": end["ts"] + min(1, end["dur"]), **_place(end)}


def _place(event: Event) -> Event:
    return {"pid": event["pid"], "tid": event["tid"]}

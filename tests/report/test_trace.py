"""Traces keep the rules of the Trace Event Format, whatever the spans are."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from relax_core.report import write_trace
from relax_core.report.trace import trace_events
from tests.report.conftest import ORIGIN, spans, write_lines
from tests.report.test_timeline import span

Event = dict[str, Any]


def check_format(events: list[Event]) -> None:
    """Required keys, names of all processes and threads, no slices that cross on a thread, flows in pairs."""
    json.dumps(events, allow_nan=False)
    names: dict[str, set[tuple[int, int]]] = defaultdict(set)
    slices: dict[tuple[int, int], list[Event]] = defaultdict(list)
    flows: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        place = (event["pid"], event["tid"])
        assert event["ph"] in "MXsf"
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "process_sort_index", "thread_sort_index")
            names[event["name"]].add(place)
            continue
        assert isinstance(event["ts"], int)
        assert event["ts"] >= 0
        assert event["name"]
        if event["ph"] == "X":
            assert event["dur"] >= 0
            slices[place].append(event)
        else:
            flows[event["id"]].append(event)
    assert set(slices) == names["thread_name"] == names["thread_sort_index"]
    assert {(pid, 0) for pid, _ in slices} == names["process_name"]
    for of_thread in slices.values():
        ordered = sorted(of_thread, key=lambda event: event["ts"])
        for first, second in pairwise(ordered):
            assert first["ts"] + first["dur"] <= second["ts"]
    for start, end in flows.values():
        assert (start["ph"], end["ph"], end["bp"]) == ("s", "f", "e")
        for flow in (start, end):
            of_thread = slices[flow["pid"], flow["tid"]]
            assert any(event["ts"] <= flow["ts"] <= event["ts"] + event["dur"] for event in of_thread)


ANY_SPAN = st.builds(
    lambda role, process, start, length, update: {
        **span(role, "update" if role == "actor" else "generate", ORIGIN + start, ORIGIN + start + length, update),
        **({"process": process} if process else {}),
        **({"group": update} if role == "rollout" else {}),
    },
    st.sampled_from(("rollout", "actor", "engine")),
    st.sampled_from(("", "actor-0", "engine-0", "rollout")),
    st.floats(0, 100),
    st.floats(0, 10),
    st.integers(0, 9),
)


@given(st.lists(ANY_SPAN, max_size=20))
def test_any_spans_make_a_trace(found: list[Event]) -> None:
    events = trace_events(found, {group: group + 1 for group in range(10)}, "a-run")
    check_format(events)
    assert len([event for event in events if event["ph"] == "X"]) == len(found)


def test_a_trace_says_what_the_timeline_says(run: Path, tmp_path: Path) -> None:
    write_trace(run, tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    check_format(trace["traceEvents"])
    first = min(event["start"] for event in spans())
    told = {(e["cat"], e["name"], e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X"}
    assert told == {
        (e["role"], e["name"], round(1e6 * (e["start"] - first)), round(1e6 * (e["end"] - e["start"]))) for e in spans()
    }
    threads = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"]
    assert threads == ["rollout", "rollout", "actor"], "groups overlap in two"


def test_processes_have_their_names_and_groups_lead_to_their_updates(tmp_path: Path) -> None:
    (tmp_path / "timeline").mkdir()
    rollout = [span("rollout", "generate", group, group + 1.5, group=group, process="rollout") for group in range(2)]
    actor = [span("actor", "update", 3 + number, 3.5 + number, number, process="actor") for number in range(2)]
    write_lines(tmp_path / "timeline" / "rollout.jsonl", rollout)
    write_lines(tmp_path / "timeline" / "actor.jsonl", actor)
    trained = [{"event": "trained", "group": 1, "update": 2}, {"event": "dropped", "group": 0, "reason": "stale"}]
    write_lines(tmp_path / "ledger.jsonl", trained)
    write_trace(tmp_path, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    check_format(events)
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert list(processes.values()) == ["rollout", "actor"]
    start, end = [event for event in events if event["ph"] in "sf"]
    assert (processes[start["pid"]], processes[end["pid"]]) == ("rollout", "actor")
    assert (start["ts"], end["ts"]) == (2_499_999, 4_000_001)

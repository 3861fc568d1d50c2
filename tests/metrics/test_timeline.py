"""Spans of wall time."""

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from relax_core.metrics.timeline import NO_TIMELINE, Timeline


class Clock:
    """Moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("relax_core.metrics.timeline.time", SimpleNamespace(time=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_span_has_its_bounds_its_update_and_what_is_known_of_it(clock: Clock) -> None:
    spans: list[Mapping[str, Any]] = []
    update = 3
    timeline = Timeline(spans.append, lambda: update)
    with timeline.span("rollout", "generate", group=7) as facts:
        clock.now += 2
        update = 4
        facts["tokens"] = 12
    assert json.loads(json.dumps(spans)) == [
        {
            "role": "rollout",
            "name": "generate",
            "start": 1000.0,
            "end": 1002.0,
            "update": 3,
            "group": 7,
            "tokens": 12,
        }
    ], "the update is that at the start"


def test_a_span_that_fails_is_stored_and_fails(clock: Clock) -> None:
    spans: list[Mapping[str, Any]] = []
    with pytest.raises(ValueError, match="broken"), Timeline(spans.append, lambda: 0).span("actor", "update"):
        clock.now += 1
        raise ValueError("broken")
    assert [span["end"] - span["start"] for span in spans] == [1.0]


def test_spans_may_lie_in_one_another_and_overlap(clock: Clock) -> None:
    spans: list[Mapping[str, Any]] = []
    timeline = Timeline(spans.append, lambda: 0)
    with timeline.span("actor", "outer"):
        clock.now += 1
        with timeline.span("actor", "inner"):
            clock.now += 1
        clock.now += 1
    assert [(span["name"], span["start"], span["end"]) for span in spans] == [
        ("inner", 1001.0, 1002.0),
        ("outer", 1000.0, 1003.0),
    ]


def test_without_a_timeline_roles_work_all_the_same() -> None:
    with NO_TIMELINE.span("actor", "update", number=1) as facts:
        facts["tokens"] = 1

"""Waits of the actor, and generation beside them, in seconds of a clock that tests read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.metrics.activity import Activity, Beside, DataWait

SPANS = st.lists(
    st.tuples(st.sampled_from(("generate", "evaluate", "save", "score")), st.integers(0, 30), st.integers(0, 9)),
    max_size=8,
)


def told(spans: list[tuple[str, int, int]], until: int = 40) -> Activity:
    """An activity that heard of the spans in the order of their beginnings and ends, up to a time."""
    activity = Activity()
    changes = [(start, 1, name) for name, start, _ in spans] + [
        (start + length, 0, name) for name, start, length in spans
    ]
    for at, begins, name in sorted(changes, key=lambda change: change[:2]):
        if at <= until:
            (activity.begin if begins else activity.end)(name, float(at))
    return activity


def seconds(spans: list[tuple[str, int, int]], *names: str) -> set[int]:
    """Whole seconds in which a span of these names was open."""
    return {second for name, start, length in spans if name in names for second in range(start, start + length)}


@given(SPANS.map(lambda spans: [(name, start, max(1, length)) for name, start, length in spans]), st.integers(0, 40))
def test_seconds_count_once_and_pauses_before_generation(spans: list[tuple[str, int, int]], until: int) -> None:
    paused, generating = seconds(spans, "evaluate", "save"), seconds(spans, "generate")
    before = set(range(until))
    totals = told(spans, until).totals(float(until))
    assert totals == Beside(len((generating - paused) & before), len(paused & before))


@given(SPANS.map(lambda spans: [(name, start, max(1, length)) for name, start, length in spans]))
def test_of_a_wait_only_what_is_no_pause_counts(spans: list[tuple[str, int, int]]) -> None:
    wait = DataWait(lambda at: told(spans, int(at)).totals(at))
    wait.begin(5.0)
    wait.begin(9.0)
    wait.end(25.0)
    wait.end(30.0)
    inside, paused = set(range(5, 25)), seconds(spans, "evaluate", "save")
    exposed = (seconds(spans, "generate") - paused) & inside
    assert wait.metrics() == {"perf/data_wait_s": len(inside - paused), "perf/rollout_exposed_s": len(exposed)}
    assert set(wait.metrics().values()) == {0.0}, "told once"


def test_waits_between_two_updates_add_up() -> None:
    wait = DataWait(lambda at: Beside(generating=at / 2))
    for begin, end in ((0.0, 2.0), (3.0, 7.0)):
        wait.begin(begin)
        wait.end(end)
    assert wait.metrics() == {"perf/data_wait_s": 6.0, "perf/rollout_exposed_s": 3.0}


def test_a_time_before_the_last_one_takes_nothing_back() -> None:
    activity = Activity()
    activity.begin("generate", 10.0)
    assert activity.totals(12.0).generating == pytest.approx(2.0)
    activity.end("generate", 11.0)
    assert activity.totals(20.0).generating == pytest.approx(2.0)

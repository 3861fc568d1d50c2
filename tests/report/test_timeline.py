"""Spans: unions, shared time, the time of each update, and what a page holds of a long run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.report.timeline import MAX_SPANS, Cover, Step, find_steps, overlap, timeline_of

INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=12)


def span(role: str, name: str, start: float, end: float, update: int = 0, **facts: float) -> dict:
    return {"role": role, "name": name, "start": start, "end": end, "update": update, **facts}


def cover(intervals: list[tuple[int, int]]) -> Cover:
    return Cover.of([{"start": start, "end": start + length} for start, length in intervals])


def seconds(intervals: list[tuple[int, int]]) -> set[int]:
    """The same, one whole second at a time."""
    return {second for start, length in intervals for second in range(start, start + length)}


@given(INTERVALS, INTERVALS, st.integers(0, 50), st.integers(0, 50))
def test_covers_are_sets_of_moments(
    first: list[tuple[int, int]], second: list[tuple[int, int]], one: int, other: int
) -> None:
    start, end = sorted((one, other))
    assert cover(first).seconds == pytest.approx(len(seconds(first)))
    assert cover(first).both(cover(second)) == pytest.approx(len(seconds(first) & seconds(second)))
    assert cover(first).within(start, end) == pytest.approx(len(seconds(first) & {*range(start, end)}))


def test_roles_that_take_turns_share_no_time() -> None:
    spans = [span("rollout", "generate", 0, 3, tokens=90), span("actor", "update", 3, 4)]
    assert overlap(spans) == {
        "seconds": 4,
        "rollout": 0.75,
        "actor": 0.25,
        "both": 0,
        "actor_waiting": 0.75,
        "tokens": 90,
        "tokens_during_updates": 0,
    }


def test_tokens_count_by_the_part_of_their_span_in_which_an_update_ran() -> None:
    spans = [
        span("rollout", "generate", 0, 4, tokens=100),
        span("rollout", "generate", 1, 3, tokens=10),
        span("actor", "accumulate", 2, 2.5),
        span("actor", "update", 2.5, 3),
        span("actor", "publish", 3, 4),
    ]
    assert overlap(spans)["tokens_during_updates"] == pytest.approx(25 + 5)


def test_without_spans_nothing_is_claimed() -> None:
    told = overlap([])
    assert told.pop("seconds") == 0
    assert set(told.values()) == {None}


def test_an_update_reaches_from_the_one_before_to_its_own_end() -> None:
    spans = [span("rollout", "generate", 1, 9), span("actor", "update", 3, 4, 0), span("actor", "update", 6, 8, 1)]
    assert find_steps(spans) == [Step(1, 1, 4), Step(2, 4, 8)]


def test_of_an_update_made_again_the_last_time_is_shown_and_a_pause_belongs_to_none() -> None:
    before = [span("actor", "update", 10 * update, 10 * update + 2, update) for update in range(4)]
    after = [span("actor", "update", 1000 + 10 * update, 1000 + 10 * update + 2, update) for update in range(2, 5)]
    assert find_steps([*before, *after]) == [
        Step(1, 0, 2),
        Step(2, 10, 12),
        Step(3, 1020, 1022),
        Step(4, 1030, 1032),
        Step(5, 1040, 1042),
    ]


def test_updates_of_a_former_stage_are_not_those_of_this_one() -> None:
    warmup = [span("actor", "update", update, update + 1, update) for update in range(5)]
    main = [span("actor", "update", 100 + update, 101 + update, update) for update in range(2)]
    assert find_steps([*warmup, *main]) == [Step(1, 100, 101), Step(2, 101, 102)]


def test_of_a_long_run_whole_updates_are_kept_first_and_last_among_them() -> None:
    updates = MAX_SPANS // 10
    times = np.arange(updates, dtype=float)
    spans = [
        span("rollout", "generate", time + part / 20, time + 0.9, update, group=part)
        for update, time in enumerate(times.tolist())
        for part in range(15)
    ]
    spans += [span("actor", "update", time + 0.5, time + 1, update) for update, time in enumerate(times.tolist())]
    page = timeline_of(spans, find_steps(spans))
    assert (page["total"], page["total_steps"]) == (16 * updates, updates)
    assert 0.8 * MAX_SPANS < len(page["spans"]) <= MAX_SPANS
    shown = [update for update, _, _ in page["steps"]]
    assert (shown[0], shown[-1]) == (1, updates)
    assert len(page["spans"]) == 16 * len(shown)
    assert page["roles"] == ["rollout", "actor"]

"""Spans: the time of each update, the lanes, and what a page holds of a long run."""

import numpy as np

from relax_core.report.timeline import MAX_SPANS, Step, find_steps, lanes_of, timeline_of


def span(role: str, name: str, start: float, end: float, update: int = 0, **facts: float) -> dict:
    return {"role": role, "name": name, "start": start, "end": end, "update": update, **facts}


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
    assert page["lanes"] == ["rollout", "actor"]


def test_lanes_are_roles_and_of_many_processes_each() -> None:
    spans = [
        span("actor", "accumulate", 0, 1, process="actor-1"),
        span("actor", "update", 0, 1, process="actor"),
        span("actor_fwd", "forward", 0, 1, process="actor"),
        span("engine", "generate", 0, 1, process="engine-0"),
        span("evaluator", "evaluate", 0, 1),
        span("mine", "work", 0, 1),
        span("rollout", "generate", 0, 1, process="rollout"),
    ]
    assert lanes_of(spans) == ["rollout", "actor: actor_fwd", "actor", "actor-1", "engine-0", "evaluator", "mine"]

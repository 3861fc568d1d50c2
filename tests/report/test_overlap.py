"""What the time of a run went into."""

import pytest

from relax_core.report.overlap import overlap
from tests.report.test_timeline import span


def test_roles_that_take_turns_share_no_time() -> None:
    spans = [span("rollout", "generate", 0, 3, tokens=90), span("actor", "update", 3, 4)]
    assert overlap(spans) == {
        "seconds": 4,
        "rollout": 0.75,
        "actor": 0.25,
        "both": 0,
        "training": 0.25,
        "sync": 0,
        "actor_waiting": 0.75,
        "paused": 0,
        "bound": 0.75,
        "data_wait": None,
        "exposed": None,
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


def test_waits_are_no_work_and_pauses_no_waits() -> None:
    spans = [
        span("actor", "wait", 0, 4),
        span("rollout", "generate", 1, 3),
        span("evaluator", "evaluate", 2, 3),
        span("actor", "update", 4, 8),
        span("actor", "publish", 8, 9),
        span("rollout", "wait", 3, 11),
        span("checkpoint", "save", 9, 11),
    ]
    shares = overlap(spans)
    seconds = shares.pop("seconds")
    assert seconds == 9, "the union of all work"
    found = {name: share * seconds for name, share in shares.items() if share}
    assert found["data_wait"] <= found["actor_waiting"], "times in which nobody worked are in neither"
    assert found == pytest.approx(
        {
            "rollout": 2,
            "actor": 5,
            "training": 4,
            "sync": 1,
            "actor_waiting": 4,
            "paused": 3,
            "data_wait": 1,
            "exposed": 1,
            "bound": 5,
        }
    )

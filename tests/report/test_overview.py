"""What was run and what came out, while a run goes on and after it."""

import pytest

from relax_core.report.charts import join_steps
from relax_core.report.overview import duration, overview


def test_a_run_that_is_going_on_is_told_by_its_metrics() -> None:
    lines = [
        {"stream": "eval", "step": 0, "time": 100.0, "eval/reward": 0.25},
        {"stream": "train", "step": 1, "time": 110.0},
        {"stream": "eval", "step": 4, "time": 120.0, "eval/reward": 0.125},
        {"stream": "train", "step": 5, "time": 130.0},
        {"stream": "eval", "step": 4, "time": 142.0, "eval/reward": 0.5},
    ]
    config = {"updates": 9, "algorithm": {"name": "grpo"}}
    facts = dict(overview(config, {}, lines, join_steps(lines), {"seconds": 42.0}))
    assert facts["status"].startswith("no summary")
    assert (facts["updates"], facts["duration"], facts["held-out reward"]) == ("5 of 9", "42.0 s", "0.250 → 0.500")
    assert not {"tasks", "largest lag", "training reward", "counters"} & facts.keys()


def test_a_summary_counts_before_what_can_be_guessed() -> None:
    summary = {
        "status": "failed",
        "wall_s": 3.04,
        "updates": 3,
        "reward_first10": 0.1,
        "reward_last10": None,
        "max_lag": 0,
        "issued": 2500,
        "trained": 2400,
        "dropped": 100,
        "dropped_reasons": {"stale": 60, "reward_error": 40},
        "counters": {"eval/error": 1},
    }
    facts = dict(overview({"updates": 3}, summary, [], {}, {}))
    assert (facts["status"], facts["updates"], facts["duration"]) == ("failed", "3", "3.0 s")
    assert (facts["training reward"], facts["largest lag"]) == ("0.100", "0")
    assert facts["tasks"] == "2,500 issued, 2,400 trained, 100 dropped (stale 60, reward_error 40)"
    assert facts["counters"] == "eval/error 1"


def test_the_time_and_its_bound_are_told() -> None:
    shares = {"rollout": 0.5, "training": 0.25, "sync": 0.125, "data_wait": None, "exposed": None, "bound": 0.5}
    facts = dict(overview({}, {}, [], {}, shares))
    assert facts["time"] == "generation 50%, training 25%, publication 12%"
    assert facts["bound"] == "50% of the time: generation alone"
    facts = dict(overview({}, {}, [], {}, {**shares, "bound": 0.875, "data_wait": 0.1, "exposed": 0.0625}))
    assert facts["time"].endswith("publication 12%, data wait 10%, exposed generation 6%")
    assert facts["bound"] == "88% of the time: training and publication alone"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, None),
        (0.04, "0.0 s"),
        (59.96, "60.0 s"),
        (60, "1 min 00 s"),
        (3599.9, "1 h 00 min"),
        (9000, "2 h 30 min"),
    ],
)
def test_durations(seconds: float | None, text: str | None) -> None:
    assert duration(seconds) == text

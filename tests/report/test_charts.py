"""Series of a run: what counts where steps come again, and which charts there are."""

from collections.abc import Iterable

from relax_core.report.charts import MAX_POINTS, PANELS, choose_panels, join_steps, series_of


def read_series(lines: Iterable[dict]) -> dict:
    return {stream: series_of(steps) for stream, steps in join_steps(lines).items()}


def line(stream: str, step: int, **metrics: float | None) -> dict:
    return {"stream": stream, "step": step, "time": 0.0, "non_finite": {}, **metrics}


def test_where_steps_go_back_what_was_beyond_is_void() -> None:
    before = [line("train", step, loss=9.0, old=1.0) for step in (1, 2, 3, 4)]
    after = [line("train", step, loss=2.0) for step in (2, 3)]
    other = [line("eval", step, reward=0.5) for step in (0, 4)]
    assert read_series([*before, *other, *after]) == {
        "train": {"steps": [1, 2, 3], "metrics": {"loss": [9.0, 2.0, 2.0], "old": [1.0, 1.0, None]}, "total": 3},
        "eval": {"steps": [0, 4], "metrics": {"reward": [0.5, 0.5]}, "total": 2},
    }


def test_lines_of_one_step_are_joined() -> None:
    series = read_series([line("eval", 3, a=1.0), line("eval", 3, b=2.0), line("eval", 3, a=4.0)])
    assert series["eval"] == {"steps": [3], "metrics": {"a": [4.0], "b": [2.0]}, "total": 1}


def test_a_metric_without_a_number_has_no_series() -> None:
    assert read_series([line("train", 1, loss=None)])["train"]["metrics"] == {}


def test_a_long_stream_keeps_its_ends_and_says_how_long_it_is() -> None:
    series = read_series(line("train", step, loss=1 / 3) for step in range(1, 3 * MAX_POINTS))["train"]
    assert (len(series["steps"]), series["total"]) == (MAX_POINTS, 3 * MAX_POINTS - 1)
    assert (series["steps"][0], series["steps"][-1]) == (1, 3 * MAX_POINTS - 1)
    assert len(set(series["steps"])) == MAX_POINTS
    assert set(series["metrics"]["loss"]) == {0.333333}


def test_panels_have_a_fixed_order_and_hold_what_exists() -> None:
    metrics = {"train/loss": 1.0, "rollout/reward": 1.0, "train/clip_fraction_low": 0.0, "train/other": 1.0}
    held_out = {"eval/sums/reward": 1.0, "eval/reward": 1.0, "eval/sums/response_tokens": 1.0}
    series = read_series([line("train", 1, **metrics), line("eval", 1, **held_out), line("warmup", 1, **metrics)])
    assert [(panel["title"], [one["metric"] for one in panel["lines"]]) for panel in choose_panels(series)] == [
        ("Reward", ["rollout/reward"]),
        ("Evaluation", ["eval/reward", "eval/sums/reward"]),
        ("Clip fraction", ["train/clip_fraction_low"]),
        ("Loss", ["train/loss"]),
    ]
    assert len({panel.title for panel in PANELS}) == len(PANELS)

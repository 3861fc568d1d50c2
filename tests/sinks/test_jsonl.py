"""The record of a run."""

import json
from pathlib import Path

import pytest

from relax_core.api.context import Context
from relax_core.api.sink import RunInfo
from relax_core.metrics.counters import Counters
from relax_core.sinks.config import JsonlSinkConfig
from relax_core.sinks.jsonl import JsonlSink
from relax_core.testing.sink import SinkContract, Values


def lines(path: Path) -> list[dict]:
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]


class TestJsonlSink(SinkContract):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> JsonlSink:
        return JsonlSink(JsonlSinkConfig(), Context("run", 0, tmp_path))

    def read(self, directory: Path) -> Values:
        values = {}
        for line in lines(directory / "metrics.jsonl"):
            stream, step, _ = line.pop("stream"), line.pop("step"), line.pop("time")
            line.pop("non_finite", None)
            values |= {(stream, step, name): value for name, value in line.items()}
        return values


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def sink(tmp_path: Path, counters: Counters) -> JsonlSink:
    sink = JsonlSink(JsonlSinkConfig(), Context("run", 0, tmp_path, count=counters.add))
    sink.start(RunInfo("run", tmp_path, 10, {}))
    return sink


def test_each_line_is_there_before_close(sink: JsonlSink, tmp_path: Path) -> None:
    sink.write("train", 1, {"train/loss": 0.5})
    sink.text("train", 1, "sample", "2 + 2 = 4")
    sink.event("checkpoint", "update 1")
    (metrics,) = lines(tmp_path / "metrics.jsonl")
    assert metrics.pop("time") > 0
    assert metrics == {"stream": "train", "step": 1, "train/loss": 0.5}
    assert lines(tmp_path / "samples.jsonl") == [{"stream": "train", "step": 1, "name": "sample", "value": "2 + 2 = 4"}]
    (event,) = lines(tmp_path / "events.jsonl")
    assert (event["name"], event["message"]) == ("checkpoint", "update 1")
    sink.close()


def test_what_json_cannot_hold_is_null_named_and_counted(sink: JsonlSink, counters: Counters, tmp_path: Path) -> None:
    sink.write("train", 1, {"train/loss": float("nan"), "train/kl": float("-inf"), "rollout/reward": 1.0})
    sink.close()
    (line,) = lines(tmp_path / "metrics.jsonl")
    assert line["train/loss"] is None and line["train/kl"] is None and line["rollout/reward"] == 1.0
    assert line["non_finite"] == {"train/loss": "nan", "train/kl": "-inf"}
    assert counters.totals() == {"metrics/non_finite": 2}


def test_texts_come_back_exactly(sink: JsonlSink, tmp_path: Path) -> None:
    text = "lone \udc80 and \ud83d, line\nfeeds \u2028, \x00 and 字"
    sink.text("train", 1, "sample", text)
    sink.close()
    assert json.loads((tmp_path / "samples.jsonl").read_bytes())["value"] == text


def test_a_metric_cannot_hide_a_key_of_the_line(sink: JsonlSink) -> None:
    with pytest.raises(ValueError, match="'time'"):
        sink.write("train", 1, {"time": 3.0})


def test_a_resumed_run_goes_on_after_a_torn_line(sink: JsonlSink, tmp_path: Path) -> None:
    sink.write("train", 1, {"train/loss": 1.0})
    sink.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"stream": "train", "st')
    resumed = JsonlSink(JsonlSinkConfig(), Context("run", 0, tmp_path))
    resumed.start(RunInfo("run", tmp_path, 10, {}))
    resumed.write("train", 2, {"train/loss": 0.5})
    resumed.close()
    assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == [1, 2]

"""Event files, read back with TensorBoard's own reader."""

import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from relax_core.api.context import Context
from relax_core.api.errors import PluginError
from relax_core.api.sink import RunInfo
from relax_core.sinks.config import TensorboardSinkConfig
from relax_core.sinks.tensorboard import TensorboardSink
from relax_core.testing.sink import SinkContract, Values


def accumulate(directory: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(directory / "tensorboard"), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


class TestTensorboardSink(SinkContract):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> TensorboardSink:
        return TensorboardSink(TensorboardSinkConfig(), Context("run", 0, tmp_path))

    def read(self, directory: Path) -> Values:
        accumulator = accumulate(directory)
        values = {}
        for tag in accumulator.Tags()["scalars"]:
            stream, name = ("warmup", tag[7:]) if tag.startswith("warmup/") else ("train", tag)
            stream = "eval" if tag.startswith("eval/") else stream
            values |= {(stream, event.step, name): event.value for event in accumulator.Scalars(tag)}
        return values


def started(directory: Path) -> TensorboardSink:
    sink = TensorboardSink(TensorboardSinkConfig(), Context("run", 0, directory))
    sink.start(RunInfo("run", directory, 10, {}))
    return sink


def test_only_other_streams_get_a_prefix_and_only_once(tmp_path: Path) -> None:
    sink = started(tmp_path)
    sink.write("train", 1, {"train/loss": 1.0, "rollout/reward": 0.0})
    sink.write("warmup", 1, {"train/loss": 1.0})
    sink.write("eval", 1, {"eval/reward": 1.0})
    sink.write("eval", 1, {"eval/easy/reward": 1.0})
    sink.write("rollout", 32, {"reward/format": 1.0})
    sink.close()
    tags = {"train/loss", "rollout/reward", "warmup/train/loss", "eval/reward", "rollout/reward/format"}
    assert set(accumulate(tmp_path).Tags()["scalars"]) == tags | {"eval/easy/reward"}


def test_numbers_can_be_read_before_close(tmp_path: Path) -> None:
    sink = started(tmp_path)
    sink.write("train", 1, {"train/loss": 0.25})
    assert accumulate(tmp_path).Scalars("train/loss")[0].value == 0.25
    sink.close()


def test_a_text_is_shown_as_it_is(tmp_path: Path) -> None:
    sink = started(tmp_path)
    sink.text("train", 3, "sample", "# no heading\nlone \udc80")
    sink.close()
    (event,) = accumulate(tmp_path).Tensors("sample/text_summary")
    assert event.step == 3
    assert event.tensor_proto.string_val[0].decode() == "    # no heading\n    lone \\udc80"


def test_a_resumed_run_adds_to_the_same_tags(tmp_path: Path) -> None:
    for step in (1, 2):
        sink = started(tmp_path)
        sink.write("train", step, {"train/loss": 0.5})
        sink.close()
    # Files of one second are read in the order of their names, in which a process's tenth comes before its ninth.
    assert sorted(event.step for event in accumulate(tmp_path).Scalars("train/loss")) == [1, 2]


def test_a_missing_tensorboard_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(PluginError, match="pip install tensorboard"):
        started(tmp_path)

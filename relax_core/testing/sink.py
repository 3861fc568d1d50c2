"""What every sink promises."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from relax_core.api.sink import RunInfo, Sink

Values = Mapping[tuple[str, int, str], float]
"""Numbers by stream, step and metric name."""


class SinkContract:
    """Subclass it, override the fixture ``sink`` and the method ``read``, and pytest checks the contract.

    The sink is started with a folder of its own, ``tmp_path``; it makes no difference to a sink that writes elsewhere.
    """

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        """A new sink, not started."""
        raise NotImplementedError("override the fixture `sink`")

    def read(self, directory: Path) -> Values:
        """All numbers that arrived, from wherever the closed sink has put them, read by other means than the sink."""
        raise NotImplementedError("override the method `read`")

    @pytest.fixture
    def run_info(self, tmp_path: Path) -> RunInfo:
        """A run of three updates in an empty folder."""
        return RunInfo("run", tmp_path, 3, {"seed": 0})

    def test_what_is_written_has_arrived_after_close(self, sink: Sink, run_info: RunInfo) -> None:
        sink.start(run_info)
        for step in (1, 2, 3):
            sink.write("train", step, {"train/loss": 0.5 / step, "rollout/reward": step})
        sink.close()
        values = self.read(run_info.directory)
        for step in (1, 2, 3):
            for name, value in (("train/loss", 0.5 / step), ("rollout/reward", step)):
                assert values.get(("train", step, name)) == pytest.approx(value, rel=1e-3), (
                    f"close writes out what is held: {name} of step {step} is missing or wrong"
                )

    def test_every_stream_has_a_step_axis_of_its_own(self, sink: Sink, run_info: RunInfo) -> None:
        sink.start(run_info)
        sink.write("warmup", 7, {"train/loss": 4.0})
        sink.write("train", 1, {"train/loss": 2.0})
        sink.write("eval", 0, {"eval/reward": 1.0})
        sink.write("train", 2, {"train/loss": 1.0})
        sink.close()
        values = self.read(run_info.directory)
        expected = {("warmup", 7, "train/loss"): 4.0, ("train", 1, "train/loss"): 2.0, ("train", 2, "train/loss"): 1.0}
        for key, value in {**expected, ("eval", 0, "eval/reward"): 1.0}.items():
            assert values.get(key) == value, f"a step of one stream must not hide one of another: {key}"

    def test_texts_and_events_do_no_harm(self, sink: Sink, run_info: RunInfo) -> None:
        sink.start(run_info)
        sink.text("train", 1, "sample", "two\nlines, [markup], \x1b[2J, \x00, a lone surrogate \udc80 and 字")
        sink.event("checkpoint", "update 1 in a lone surrogate \udc80")
        sink.write("train", 1, {"train/loss": 2.0})
        sink.close()
        values = self.read(run_info.directory)
        assert values.get(("train", 1, "train/loss")) == 2.0, "numbers arrive after a text and an event"

    def test_a_number_that_is_not_finite_hides_no_other(self, sink: Sink, run_info: RunInfo) -> None:
        sink.start(run_info)
        sink.write("train", 1, {"train/loss": float("nan"), "rollout/reward": 1.0})
        sink.write("train", 2, {"train/loss": float("inf"), "rollout/reward": 2.0})
        sink.close()
        values = self.read(run_info.directory)
        assert values.get(("train", 1, "rollout/reward")) == 1.0, "the other numbers of the step arrive"
        assert values.get(("train", 2, "rollout/reward")) == 2.0, "later steps arrive"

    def test_numbers_are_left_as_they_are(self, sink: Sink, run_info: RunInfo) -> None:
        metrics = {"train/loss": 2.0, "rollout/reward": float("nan"), "time/update": 1}
        before = repr(metrics)
        sink.start(run_info)
        sink.write("train", 1, metrics)
        sink.close()
        assert repr(metrics) == before, "write() changes the numbers, which other sinks read after it"

    def test_a_run_without_a_step_closes(self, sink: Sink, run_info: RunInfo) -> None:
        sink.start(run_info)
        sink.close()
        assert not self.read(run_info.directory), "nothing was written, so nothing arrives"

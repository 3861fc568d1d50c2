"""The hub in front of sinks that work, raise, or block until the test lets them go."""

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from relax_core.api.context import Context
from relax_core.api.errors import DeadlineExceeded, PluginError, RelaxError
from relax_core.api.sink import RunInfo, Sink
from relax_core.metrics.hub import MetricHub
from relax_core.sinks.config import JsonlSinkConfig
from relax_core.sinks.jsonl import JsonlSink


class Recorder(Sink):
    """Keeps what it is told, and on which thread."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.threads: set[str] = set()

    def _note(self, *call: object) -> None:
        self.calls.append(call)
        self.threads.add(threading.current_thread().name)

    def start(self, run: RunInfo) -> None:
        self._note("start", run.run_id)

    def write(self, stream: str, step: int, metrics: Mapping[str, float]) -> None:
        self._note("write", stream, step, dict(metrics))

    def text(self, stream: str, step: int, name: str, value: str) -> None:
        self._note("text", stream, step, name, value)

    def event(self, name: str, message: str) -> None:
        self._note("event", name, message)

    def close(self) -> None:
        self._note("close")

    def events(self) -> list[tuple[object, ...]]:
        return [call[1:] for call in self.calls if call[0] == "event"]

    def steps(self) -> list[object]:
        return [call[2] for call in self.calls if call[0] == "write"]


class Raising(Recorder):
    """Raises in ``write`` at the given steps."""

    def __init__(self, *steps: int) -> None:
        super().__init__()
        self.bad_steps = steps

    def write(self, stream: str, step: int, metrics: Mapping[str, float]) -> None:
        super().write(stream, step, metrics)
        if step in self.bad_steps:
            raise OSError(f"no space at step {step}")


class Blocking(Recorder):
    """Stands still in ``write`` until ``gate`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.entered = threading.Event()

    def write(self, stream: str, step: int, metrics: Mapping[str, float]) -> None:
        self.entered.set()
        assert self.gate.wait(60)
        super().write(stream, step, metrics)


@pytest.fixture
def run(tmp_path: Path) -> RunInfo:
    return RunInfo("run", tmp_path, 10, {})


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    sink = Blocking()
    yield sink
    sink.gate.set()


def test_records_arrive_in_order_on_one_other_thread(run: RunInfo) -> None:
    sink = Recorder()
    hub = MetricHub({"recorder": sink}, run)
    hub.write("warmup", 5, {"train/loss": 2})
    hub.write("eval", 0, {"eval/reward": 0.5})
    hub.text("eval", 0, "sample", "4")
    hub.event("checkpoint", "update 0")
    hub.close()
    assert sink.calls == [
        ("start", "run"),
        ("write", "warmup", 5, {"train/loss": 2.0}),
        ("write", "eval", 0, {"eval/reward": 0.5}),
        ("text", "eval", 0, "sample", "4"),
        ("event", "checkpoint", "update 0"),
        ("close",),
    ]
    assert sink.threads == {"metrics"}


def test_numbers_are_copied_when_they_are_written(run: RunInfo, blocking: Blocking) -> None:
    hub = MetricHub({"blocking": blocking}, run)
    metrics = {"train/loss": 1.0}
    hub.write("eval", 1, metrics)
    metrics["train/loss"] = 2.0
    blocking.gate.set()
    hub.close()
    assert ("write", "eval", 1, {"train/loss": 1.0}) in blocking.calls


def test_counters_go_with_the_train_stream(run: RunInfo) -> None:
    sink = Recorder()
    hub = MetricHub({"recorder": sink}, run)
    hub.count("drop/stale")
    hub.count("drop/stale", 2)
    hub.write("eval", 1, {})
    hub.write("train", 1, {"train/loss": 1.0})
    hub.close()
    assert hub.counters() == {"drop/stale": 3}
    assert sink.calls[1:3] == [
        ("write", "eval", 1, {}),
        ("write", "train", 1, {"train/loss": 1.0, "count/drop/stale": 3.0}),
    ]


def test_a_raising_sink_harms_no_other_and_comes_back(run: RunInfo, caplog: pytest.LogCaptureFixture) -> None:
    raising, sound = Raising(1, 3), Recorder()
    hub = MetricHub({"disk": raising, "sound": sound}, run, max_errors=2)
    for step in (1, 2, 3, 4):
        hub.write("eval", step, {})
    hub.close()
    assert sound.steps() == raising.steps() == [1, 2, 3, 4]
    assert hub.counters() == {"sink/disk/error": 2}
    assert sound.events() == [("sink_error", "sink 'disk' raised OSError: no space at step 1")]
    assert raising.events() == []
    assert len(caplog.messages) == 1


def test_errors_in_a_row_switch_a_sink_off_but_it_is_closed(run: RunInfo, caplog: pytest.LogCaptureFixture) -> None:
    raising, sound = Raising(*range(10)), Recorder()
    hub = MetricHub({"disk": raising, "sound": sound}, run, max_errors=3)
    for step in range(10):
        hub.write("eval", step, {})
    hub.close()
    assert sound.steps() == list(range(10))
    assert raising.steps() == [0, 1, 2]
    assert raising.calls[-1] == ("close",)
    assert sound.events()[-1] == ("sink_off", "sink 'disk' is switched off after 3 errors in a row")
    assert "switched off" in caplog.messages[-1]
    assert hub.counters() == {"sink/disk/error": 3}


def test_two_sinks_that_raise_at_everything_end_nothing(run: RunInfo) -> None:
    class Broken(Recorder):
        def write(self, stream: str, step: int, metrics: Mapping[str, float]) -> None:
            raise ValueError("write")

        def event(self, name: str, message: str) -> None:
            raise ValueError("event")

        def close(self) -> None:
            raise ValueError("close")

    sound = Recorder()
    hub = MetricHub({"a": Broken(), "sound": sound, "b": Broken()}, run, max_errors=4)
    for step in range(10):
        hub.write("eval", step, {})
    hub.close()
    assert sound.steps() == list(range(10))
    assert [name for name, _ in sound.events()].count("sink_off") == 2
    assert sound.calls[-1] == ("close",)


@pytest.mark.parametrize("error", [PluginError("install it"), OSError("read only")])
def test_a_sink_that_cannot_start_is_refused(run: RunInfo, error: Exception) -> None:
    class Unstartable(Recorder):
        def start(self, run: RunInfo) -> None:
            raise error

    first = Recorder()
    with pytest.raises(RelaxError, match=r"install it|sink 'bad' could not start: OSError: read only") as raised:
        MetricHub({"first": first, "bad": Unstartable()}, run)
    assert isinstance(error, RelaxError) == (raised.value is error)


def test_a_sink_that_hangs_at_the_start_is_named(run: RunInfo) -> None:
    gate = threading.Event()

    class Hanging(Recorder):
        def start(self, run: RunInfo) -> None:
            assert gate.wait(60)

    with pytest.raises(DeadlineExceeded, match="'hanging'"):
        MetricHub({"hanging": Hanging()}, run, start_timeout=0.01)
    gate.set()


def test_a_blocked_sink_holds_a_bounded_queue_and_drops_are_counted(run: RunInfo, blocking: Blocking) -> None:
    hub = MetricHub({"blocking": blocking}, run, queue_size=8, max_wait=0.01)
    hub.write("train", 0, {})
    assert blocking.entered.wait(60)
    for step in range(1, 200):
        hub.write("train", step, {"train/loss": 1.0})
        assert hub._queue.qsize() <= 8
    assert hub.counters() == {"sink/dropped": 199 - 8}
    blocking.gate.set()
    hub.close()
    assert blocking.steps() == list(range(9))
    assert blocking.events() == [("sink_dropped", "191 records are lost, since sinks were too slow")]


def test_two_hundred_steps_leave_nothing_in_the_queue(run: RunInfo) -> None:
    sink = Recorder()
    hub = MetricHub({"recorder": sink}, run, queue_size=4, max_wait=60)
    for step in range(200):
        hub.write("train", step, {"train/loss": 1.0})
    hub.close()
    assert sink.steps() == list(range(200))
    assert hub._queue.qsize() == 0
    assert hub.counters() == {}


def test_close_gives_up_on_a_blocked_sink_and_says_what_is_lost(
    run: RunInfo, blocking: Blocking, caplog: pytest.LogCaptureFixture
) -> None:
    hub = MetricHub({"sound": Recorder(), "blocking": blocking}, run)
    for step in range(4):
        hub.write("eval", step, {})
    assert blocking.entered.wait(60)
    hub.close(timeout=0.01)
    assert hub.counters() == {"sink/dropped": 3}
    assert caplog.messages == ["sink 'blocking' did not finish within 0.01 s; 3 records are lost"]
    blocking.gate.set()
    hub._thread.join(60)
    assert blocking.steps() == [0]
    assert blocking.calls[-1] == ("close",)


def test_close_gives_up_on_a_full_queue_too(run: RunInfo, blocking: Blocking) -> None:
    hub = MetricHub({"blocking": blocking}, run, queue_size=2, max_wait=0)
    hub.write("eval", 0, {})
    assert blocking.entered.wait(60)
    for step in range(1, 6):
        hub.write("eval", step, {})
    hub.close(timeout=0.01)
    assert hub.counters() == {"sink/dropped": 5}


def test_what_comes_after_close_is_counted(run: RunInfo) -> None:
    sink = Recorder()
    hub = MetricHub({"recorder": sink}, run)
    hub.close()
    hub.close()
    hub.write("train", 1, {})
    hub.event("late", "too late")
    assert hub.counters() == {"sink/dropped": 2}
    assert sink.calls == [("start", "run"), ("close",)]


def test_events_tell_no_secrets(run: RunInfo) -> None:
    sink = Recorder()
    hub = MetricHub({"recorder": sink}, run)
    hub.event("failed", "https://abc@example.org")
    hub.close()
    assert sink.events() == [("failed", "https://***@example.org")]


def test_a_step_that_goes_back_is_kept_as_an_event(run: RunInfo) -> None:
    sink = Recorder()
    hub = MetricHub({"recorder": sink}, run)
    hub.write("train", 5, {"train/loss": 1.0})
    hub.write("eval", 4, {"eval/reward": 1.0})
    hub.text("train", 5, "sample", "equal steps are fine")
    hub.write("train", 4, {"train/loss": 9.0})
    hub.write("train", 6, {"train/loss": 0.5})
    hub.close()
    assert sink.steps() == [5, 4, 6]
    assert sink.events() == [
        ("step_went_back", "stream 'train': step 4 came after step 5: {'train/loss': 9.0}"),
    ]
    assert hub.counters() == {"sink/step_went_back": 1}


def test_many_threads_lose_nothing_on_their_way_to_a_real_file(run: RunInfo) -> None:
    sink = JsonlSink(JsonlSinkConfig(), Context("run", 0, run.directory))
    hub = MetricHub({"jsonl": sink}, run, max_wait=60)

    def write(stream: str) -> None:
        for step in range(50):
            hub.write(stream, step, {f"{stream}/x": step})
            hub.count("written")

    threads = [threading.Thread(target=write, args=(name,)) for name in ("train", "eval", "rollout")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hub.close()
    lines = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    for stream in ("train", "eval", "rollout"):
        assert [line["step"] for line in lines if line["stream"] == stream] == list(range(50))
    assert hub.counters() == {"written": 150}

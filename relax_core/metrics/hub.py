"""Where all that a run tells goes through: one bounded queue and one thread in front of the sinks."""

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from queue import Empty, Full, Queue

from relax_core.api.errors import DeadlineExceeded
from relax_core.api.sink import RunInfo, Sink
from relax_core.config.redact import redacted_text
from relax_core.metrics.counters import Counters
from relax_core.metrics.sinks import Record, SinkGroup

logger = logging.getLogger(__name__)

DROPPED = "sink/dropped"
STEP_WENT_BACK = "sink/step_went_back"


class MetricHub:
    """Hands records to the sinks from a thread of its own, so that no sink can slow down or end the training.

    * A sink that cannot start is refused: the constructor raises. What a sink raises later is kept from the run and
      from the other sinks; see :class:`SinkGroup`.
    * The contract gives all sinks one thread, so a sink that blocks holds up the others. Then the queue fills: the
      caller waits ``max_wait`` seconds once, and from there on records are dropped at once, counted as
      ``sink/dropped``, until there is room again.
    * Steps of a stream must not go back. A record that does is kept as an event and counted, not delivered.

    All methods may be called from any thread.

    Args:
        sinks: By the name that messages use.
        run: What the sinks are told at the start.
        queue_size: Records that may wait.
        max_wait: Longest time in seconds that a call waits for room in the queue.
        max_errors: Errors in a row that switch a sink off.
        start_timeout: Seconds that all sinks together may take to start.

    Raises:
        RelaxError: A sink could not start.
        DeadlineExceeded: The sinks did not start in time.
    """

    def __init__(
        self,
        sinks: Mapping[str, Sink],
        run: RunInfo,
        *,
        queue_size: int = 1024,
        max_wait: float = 1.0,
        max_errors: int = 5,
        start_timeout: float = 120.0,
    ) -> None:
        self._max_wait = max_wait
        self._queue: Queue[Record | None] = Queue(queue_size)
        self._counters = Counters()
        self._sinks = SinkGroup(sinks, max_errors, self.count)
        self._lock = threading.Lock()
        self._last_steps: dict[str, int] = {}
        self._full = self._closed = False
        self._start_error: Exception | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(run,), name="metrics", daemon=True)
        self._thread.start()
        if not self._started.wait(start_timeout):
            raise DeadlineExceeded(f"sink {self._sinks.calling!r} did not start within {start_timeout:g} s")
        if self._start_error:
            raise self._start_error

    def write(self, stream: str, step: int, metrics: Mapping[str, float]) -> None:
        """Numbers of one step; the stream ``train`` also gets all counters, as ``count/<name>``."""
        values = {name: float(value) for name, value in metrics.items()}
        if stream == "train":
            values |= {f"count/{name}": float(total) for name, total in self.counters().items()}
        self._put_step(stream, step, str(values), lambda sink: sink.write(stream, step, values))

    def text(self, stream: str, step: int, name: str, value: str) -> None:
        """A text of one step."""
        self._put_step(stream, step, f"{name}: {value}", lambda sink: sink.text(stream, step, name, value))

    def event(self, name: str, message: str) -> None:
        """Something happened. Secrets in the message, as the error of a client may quote them, are left out."""
        told = redacted_text(message)
        with self._lock:
            self._put(lambda sink: sink.event(name, told))

    def count(self, name: str, amount: int = 1) -> None:
        """Adds to a counter of the run; what :attr:`relax_core.api.context.Context.count` of its components calls."""
        self._counters.add(name, amount)

    def counters(self) -> dict[str, int]:
        """All totals so far, those of the hub itself among them."""
        return self._counters.totals()

    def close(self, timeout: float = 10.0) -> None:
        """Delivers what waits and closes the sinks, or gives up after ``timeout`` seconds and counts what is lost.

        Later calls deliver nothing and are counted as dropped. Closing twice is allowed.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        deadline = time.monotonic() + timeout
        with suppress(Full):  # Then the thread stands still, which the join finds out.
            self._queue.put(None, timeout=timeout)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._give_up(timeout)

    def _put_step(self, stream: str, step: int, content: str, record: Record) -> None:
        with self._lock:
            last = self._last_steps.get(stream, step)
            if step >= last:
                self._last_steps[stream] = step
                self._put(record)
                return
        self.count(STEP_WENT_BACK)
        self.event("step_went_back", f"stream {stream!r}: step {step} came after step {last}: {content}")

    def _put(self, record: Record) -> None:
        """Needs the lock, which keeps the order of steps on the way to the queue."""
        if self._closed:
            self.count(DROPPED)
            return
        try:
            self._queue.put(record, timeout=0.0 if self._full else self._max_wait)
            self._full = False
        except Full:
            self._full = True
            self.count(DROPPED)

    def _give_up(self, timeout: float) -> None:
        lost = 0
        try:
            while True:
                lost += self._queue.get_nowait() is not None
        except Empty:
            self._queue.put_nowait(None)  # Should the sink return after all, the thread ends.
        self.count(DROPPED, lost)
        dropped = self.counters()[DROPPED]
        logger.error("sink %r did not finish within %g s; %d records are lost", self._sinks.calling, timeout, dropped)

    def _run(self, run: RunInfo) -> None:
        """The hub's own thread."""
        try:
            self._sinks.start(run)
        except Exception as error:  # Raised again by the constructor.
            self._start_error = error
        self._started.set()
        if not self._start_error:
            while record := self._queue.get():
                self._sinks.deliver(record)
            if dropped := self.counters().get(DROPPED):
                self._sinks.announce("sink_dropped", f"{dropped} records are lost, since sinks were too slow")
        self._sinks.close()

"""Several sinks behind one, each with its errors kept to itself. Used from a single thread."""

import logging
from collections.abc import Callable, Mapping

from relax_core.api.errors import RelaxError
from relax_core.api.sink import RunInfo, Sink
from relax_core.config.redact import redacted_text

logger = logging.getLogger(__name__)

Record = Callable[[Sink], None]
"""One call that every sink gets."""


class SinkGroup:
    """Delivers records to all sinks; one that raises does not keep a record from the others.

    An error is counted as ``sink/<name>/error``; a sink's first one is logged and told to the others. After
    ``max_errors`` in a row the sink is switched off, which is logged and told as well.

    Args:
        sinks: By the name that messages use.
        max_errors: Errors in a row that switch a sink off.
        count: Adds to a counter.
    """

    def __init__(self, sinks: Mapping[str, Sink], max_errors: int, count: Callable[[str, int], None]) -> None:
        self._sinks = dict(sinks)
        self._started: dict[str, Sink] = {}
        self._on: dict[str, Sink] = {}
        self._failed = dict.fromkeys(sinks, False)
        self._errors_in_row = dict.fromkeys(sinks, 0)
        self._max_errors, self._count = max_errors, count
        self.calling = ""
        """The sink that was called last: the one to blame when a call does not return."""

    def start(self, run: RunInfo) -> None:
        """Starts all sinks; ``RelaxError`` at the first that cannot."""
        for name, sink in self._sinks.items():
            self.calling = name
            try:
                sink.start(run)
            except RelaxError:
                raise
            except Exception as error:
                raise RelaxError(f"sink {name!r} could not start: {_describe(error)}") from error
            self._started[name] = self._on[name] = sink

    def deliver(self, record: Record, apart_from: str = "") -> None:
        """Makes the call on every sink that is not switched off."""
        for name in list(self._on):
            if name == apart_from or name not in self._on:  # One may be switched off while the record is under way.
                continue
            self.calling = name
            try:
                record(self._on[name])
            except Exception as error:
                self._note(name, error)
            else:
                self._errors_in_row[name] = 0

    def announce(self, name: str, message: str, apart_from: str = "") -> None:
        """Logs a message and tells it to the sinks as an event, without secrets."""
        message = redacted_text(message)
        logger.error(message)
        self.deliver(lambda sink: sink.event(name, message), apart_from)

    def close(self) -> None:
        """Closes every sink that was started, those switched off too."""
        for name, sink in self._started.items():
            self.calling = name
            try:
                sink.close()
            except Exception as error:
                self._count(f"sink/{name}/error", 1)
                logger.error("sink %r could not be closed: %s", name, _describe(error))

    def _note(self, name: str, error: Exception) -> None:
        self._count(f"sink/{name}/error", 1)
        self._errors_in_row[name] += 1
        if not self._failed[name]:
            self._failed[name] = True
            self.announce("sink_error", f"sink {name!r} raised {_describe(error)}", apart_from=name)
        if name in self._on and self._errors_in_row[name] >= self._max_errors:
            del self._on[name]
            self.announce("sink_off", f"sink {name!r} is switched off after {self._max_errors} errors in a row")


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

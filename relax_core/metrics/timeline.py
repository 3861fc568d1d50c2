"""When which role did what: one line per span in ``timeline.jsonl``, for the report of a run."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from relax_core.metrics.activity import Activity

WAIT = "wait"
"""Name of the span in which a role had nothing to do."""

SHORTEST_WAIT = 1e-3
"""Seconds; shorter waits are the cost of looking."""


class Timeline:
    """Spans of wall time.

    Args:
        write: Stores a span: a JSON object with ``role``, ``name``, ``start`` and ``end`` in Unix seconds, ``update``,
            and further facts.
        update: Updates done so far; ``None`` where nobody knows: whoever reads the timeline then finds it by time.
        activity: Told when a span begins and ends.
        facts: What every span holds, for example its process.
    """

    def __init__(
        self,
        write: Callable[[Mapping[str, Any]], None],
        update: Callable[[], int] | None = None,
        activity: Activity | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self._write = write
        self._update = update
        self._activity = activity
        self._facts = dict(facts or {})
        self._waiting: dict[str, float] = {}

    @contextmanager
    def span(self, role: str, name: str, **facts: Any) -> Iterator[dict[str, Any]]:
        """Stores the time in which the block ran, however it ends; facts may be added to what it yields."""
        done, start = self._done(), time.time()
        if self._activity is not None:
            self._activity.begin(name, start)
        try:
            yield facts
        finally:
            end = time.time()
            if self._activity is not None:
                self._activity.end(name, end)
            self._store(role, name, start, end, {**done, **facts})

    def waiting(self, role: str, at: float | None = None) -> None:
        """The role has nothing to do from now (or another time) on; without effect while it waits already."""
        self._waiting.setdefault(role, time.time() if at is None else at)

    def working(self, role: str, at: float | None = None) -> None:
        """The role has something to do: its wait, if it was one, becomes a span."""
        start, end = self._waiting.pop(role, None), time.time() if at is None else at
        if start is not None and end - start >= SHORTEST_WAIT:
            self._store(role, WAIT, start, end, self._done())

    def _done(self) -> dict[str, int]:
        return {} if self._update is None else {"update": self._update()}

    def _store(self, role: str, name: str, start: float, end: float, facts: Mapping[str, Any]) -> None:
        self._write({"role": role, "name": name, "start": start, "end": end, **self._facts, **facts})


def _nowhere(span: Mapping[str, Any]) -> None:
    """Keeps nothing."""


NO_TIMELINE = Timeline(_nowhere)
"""For roles whose runtime keeps no timeline."""

"""When which role did what: one line per span in ``timeline.jsonl``, for the report of a run."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class Timeline:
    """Spans of wall time.

    Args:
        write: Stores a span: a JSON object with ``role``, ``name``, ``start`` and ``end`` in Unix seconds, ``update``,
            and further facts.
        update: Updates done so far.
    """

    def __init__(self, write: Callable[[Mapping[str, Any]], None], update: Callable[[], int]) -> None:
        self._write = write
        self._update = update

    @contextmanager
    def span(self, role: str, name: str, **facts: Any) -> Iterator[dict[str, Any]]:
        """Stores the time in which the block ran, however it ends; facts may be added to what it yields."""
        update, start = self._update(), time.time()
        try:
            yield facts
        finally:
            self._write({"role": role, "name": name, "start": start, "end": time.time(), "update": update, **facts})


def _nowhere(span: Mapping[str, Any]) -> None:
    """Keeps nothing."""


NO_TIMELINE = Timeline(_nowhere, lambda: 0)
"""For roles whose runtime keeps no timeline."""

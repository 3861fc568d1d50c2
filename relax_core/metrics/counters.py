"""Named totals: drops, retries, caught errors."""

import threading
from collections import Counter


class Counters:
    """Totals since the start of the process; any thread may add."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        """Adds to the total of ``name``, which starts at 0."""
        with self._lock:
            self._totals[name] += amount

    def totals(self) -> dict[str, int]:
        """A copy of all totals."""
        with self._lock:
            return dict(self._totals)

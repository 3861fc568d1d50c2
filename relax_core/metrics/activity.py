"""How long the actor waits for its rows, and how much of the generation nothing hides."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

GENERATING = "generate"
PAUSED = "pause"
PAUSES = frozenset({"evaluate", "save"})
"""Spans of evaluations and checkpoints: what they take is no wait for rows."""


@dataclass(frozen=True)
class Beside:
    """What went on beside the actor up to some time, in seconds of wall time.

    Args:
        generating: Some group was being generated for training, and the run was not paused.
        paused: An evaluation or a checkpoint ran.
    """

    generating: float = 0.0
    paused: float = 0.0


class Activity:
    """Adds up how long generation and pauses go on, by the beginnings and ends of spans; any thread may tell them.

    Times are Unix seconds. One that is before another told already counts as that one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()
        self._until = self._generating = self._paused = 0.0

    def begin(self, span: str, at: float) -> None:
        """A span of that name begins; others of that name may be open."""
        self._change(span, at, 1)

    def end(self, span: str, at: float) -> None:
        """A span of that name ends."""
        self._change(span, at, -1)

    def totals(self, at: float) -> Beside:
        """The seconds until a time, those of open spans among them."""
        with self._lock:
            self._advance(at)
            return Beside(self._generating, self._paused)

    def _change(self, span: str, at: float, by: int) -> None:
        with self._lock:
            self._advance(at)
            self._open[PAUSED if span in PAUSES else span] += by

    def _advance(self, at: float) -> None:
        elapsed = max(0.0, at - self._until)
        if self._open[PAUSED]:
            self._paused += elapsed
        elif self._open[GENERATING]:
            self._generating += elapsed
        self._until += elapsed


class DataWait:
    """Times the waits of an actor, and tells them once.

    Args:
        beside: What went on beside the actor up to a time.
    """

    def __init__(self, beside: Callable[[float], Beside]) -> None:
        self._beside = beside
        self._began: tuple[float, Beside] | None = None
        self._waited = self._exposed = 0.0

    def begin(self, at: float) -> None:
        """The actor has nothing to do; without effect while it waits already."""
        if self._began is None:
            self._began = at, self._beside(at)

    def end(self, at: float) -> None:
        """The actor has rows."""
        if self._began is None:
            return
        (since, before), self._began = self._began, None
        after = self._beside(at)
        self._waited += max(0.0, at - since - (after.paused - before.paused))
        self._exposed += after.generating - before.generating

    def metrics(self) -> dict[str, float]:
        """``perf/data_wait_s`` and ``perf/rollout_exposed_s`` of the waits that ended since the last call."""
        told = {"perf/data_wait_s": self._waited, "perf/rollout_exposed_s": self._exposed}
        self._waited = self._exposed = 0.0
        return told

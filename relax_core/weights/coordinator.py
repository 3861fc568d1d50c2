"""Who receives weights, which version each receiver has acknowledged, and how the last publications went."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from relax_core.api.errors import RelaxError

ENGINE, EXTERNAL = "engine", "external"
KINDS = (ENGINE, "reference", "evaluator", EXTERNAL)
"""Engines of the run are sent every publication; the others fetch what they want."""


class UnknownReceiver(RelaxError):
    """Nobody of that name has registered."""


@dataclass
class Receiver:
    """Somebody who computes with published weights.

    Args:
        name: Unique.
        kind: One of :data:`KINDS`.
        version: The one acknowledged last; ``None`` before the first, and when it asked for everything again.
        acknowledged: When, in Unix seconds.
    """

    name: str
    kind: str
    version: int | None = None
    acknowledged: float | None = None


@dataclass(frozen=True)
class Delivery:
    """One publication, as it went.

    Args:
        version: Of the publication.
        kind: ``full`` or ``delta``.
        bytes: That were carried.
        started: Unix seconds.
        seconds: By phase: ``snapshot``, ``transfer``, ``pause``; empty while it goes on.
        error: Why it failed; empty where it did not.
    """

    version: int
    kind: str
    bytes: int
    started: float
    seconds: Mapping[str, float] = field(default_factory=dict)
    error: str = ""


class Coordinator:
    """All methods may be called from any thread.

    Args:
        publisher: Who sends, for people: process, host, number of ranks.
        keep: Publications remembered.
        clock: Unix seconds.
    """

    def __init__(
        self, publisher: Mapping[str, Any] | None = None, keep: int = 32, clock: Callable[[], float] = time.time
    ) -> None:
        self._publisher = dict(publisher or {})
        self._clock = clock
        self._lock = threading.Lock()
        self._receivers: dict[str, Receiver] = {}
        self._asked: set[str] = set()
        """Who has asked for everything since the last whole publication began."""
        self._history: deque[Delivery] = deque(maxlen=keep)
        self._version = 0

    @property
    def version(self) -> int:
        """Published last: all engines of the run have acknowledged it."""
        return self._version

    def register(self, name: str, kind: str = ENGINE) -> None:
        """Adds a receiver, without any version; one of that name and kind stays as it is.

        Raises:
            RelaxError: Another kind of receiver has the name, or there is no such kind.
        """
        if kind not in KINDS:
            raise RelaxError(f"a receiver is one of {', '.join(KINDS)}, not {kind!r}")
        with self._lock:
            known = self._receivers.setdefault(name, Receiver(name, kind))
            if known.kind != kind:
                raise RelaxError(f"{name!r} is the name of a receiver of kind {known.kind}")

    def unregister(self, name: str) -> None:
        """Forgets a receiver; one that is not known is forgotten already.

        Raises:
            RelaxError: It is an engine of the run, which is sent every publication, whoever forgets it.
        """
        with self._lock:
            known = self._receivers.get(name)
            if known is not None and known.kind == ENGINE:
                raise RelaxError(f"{name!r} is an engine of the run, and is a receiver as long as the run has it")
            self._forget(name)

    def engines(self, names: Iterable[str]) -> None:
        """Registers the engines of the run as they are now."""
        wanted = set(names)
        with self._lock:
            known = [name for name, receiver in self._receivers.items() if receiver.kind == ENGINE]
            for name in set(known) - wanted:
                self._forget(name)
        for name in wanted:
            self.register(name)

    def acknowledge(self, name: str, version: int) -> None:
        """A receiver computes with a version.

        Raises:
            UnknownReceiver: It has not registered.
            RelaxError: There is no such version yet.
        """
        with self._lock:
            newest = max([self._version, *(delivery.version for delivery in self._history)])
            if version > newest:
                raise RelaxError(f"{name!r} acknowledged version {version}, and {newest} is the newest")
            self._has(self._known(name), version)

    def again(self, name: str) -> None:
        """A receiver asks for everything: the next publication that begins reaches it whole.

        Raises:
            UnknownReceiver: It has not registered.
        """
        with self._lock:
            self._known(name).version = None
            self._asked.add(name)

    def have(self, names: Iterable[str], version: int | None) -> bool:
        """Whether all of these have acknowledged just that version."""
        with self._lock:
            return all(name in self._receivers and self._receivers[name].version == version for name in names)

    def began(self, version: int, kind: str, size: int) -> None:
        """A publication is on its way."""
        with self._lock:
            if kind == "full":
                self._asked.clear()
            self._history.append(Delivery(version, kind, size, self._clock()))

    def ended(self, version: int, seconds: Mapping[str, float], error: str = "") -> None:
        """The publication that began last has arrived everywhere, or failed."""
        with self._lock:
            last = self._history[-1]
            self._history[-1] = Delivery(last.version, last.kind, last.bytes, last.started, dict(seconds), error)
            if not error:
                self._version = version

    def reached(self, names: Iterable[str], version: int) -> None:
        """A publication has arrived at these; who is gone meanwhile, or waits for a whole one, has nothing of it."""
        with self._lock:
            for name in names:
                if name in self._receivers and name not in self._asked:
                    self._has(self._receivers[name], version)

    def status(self) -> dict[str, Any]:
        """Everything as JSON values."""
        with self._lock:
            return {
                "publisher": dict(self._publisher),
                "version": self._version,
                "receivers": [asdict(receiver) for receiver in self._receivers.values()],
                "history": [asdict(delivery) for delivery in self._history],
            }

    def _has(self, receiver: Receiver, version: int) -> None:
        receiver.version, receiver.acknowledged = version, self._clock()

    def _forget(self, name: str) -> None:
        self._receivers.pop(name, None)
        self._asked.discard(name)

    def _known(self, name: str) -> Receiver:
        if name not in self._receivers:
            raise UnknownReceiver(f"no receiver {name!r} has registered")
        return self._receivers[name]

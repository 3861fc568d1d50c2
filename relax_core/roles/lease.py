"""Work may take longer than a lease lasts; a lease ends with the process that holds it, not with its patience."""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from relax_core.api.errors import DeadlineExceeded, TransportError
from relax_core.api.transport import Lease, Transport


class Renewals:
    """Renews any number of leases three times in the life of the shortest, as long as there are any.

    From a thread, since work may block the event loop. A lease that was settled or lost meanwhile is let go: its holder
    learns of it at its own next call.

    Args:
        transport: Whose leases they are.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._leases: dict[str, Lease] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @contextmanager
    def held(self, lease: Lease) -> Iterator[None]:
        """Renews the lease as long as the block runs."""
        with self._changed:
            self._leases[lease.key] = lease
            if self._thread is None:
                self._thread = threading.Thread(target=self._renew, name=f"renew {lease.consumer}", daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._leases.pop(lease.key, None)
                self._changed.notify()

    def _renew(self) -> None:
        due = math.inf
        while True:
            with self._changed:
                if not self._leases:
                    self._thread = None
                    return
                shortest = min(lease.seconds for lease in self._leases.values())
                due = min(due, time.monotonic() + shortest / 3)
                if self._changed.wait(max(0.0, due - time.monotonic())):
                    continue  # leases came or went
                leases, due = list(self._leases.values()), math.inf
            for lease in leases:
                self._renew_one(lease)

    def _renew_one(self, lease: Lease) -> None:
        try:
            self._transport.renew(lease, lease.seconds)
        except DeadlineExceeded:
            return  # it is asked for again when the next renewal is due
        except TransportError:
            with self._changed:
                self._leases.pop(lease.key, None)


@contextmanager
def held(transport: Transport, lease: Lease) -> Iterator[None]:
    """Renews one lease as long as the block runs; see :class:`Renewals`."""
    with Renewals(transport).held(lease):
        yield

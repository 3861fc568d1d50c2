"""Work may take longer than a lease lasts; a lease ends with the process that holds it, not with its patience."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from relax_core.api.errors import TransportError
from relax_core.api.transport import Lease, Transport


@contextmanager
def held(transport: Transport, lease: Lease) -> Iterator[None]:
    """Renews a lease three times in its life as long as the block runs.

    From a thread, since training blocks the event loop. A lease that was settled or lost meanwhile is let go: its
    holder learns of it at its own next call.
    """
    done = threading.Event()

    def renew() -> None:
        while not done.wait(lease.seconds / 3):
            try:
                transport.renew(lease, lease.seconds)
            except TransportError:
                return

    threading.Thread(target=renew, name=f"renew {lease.key}", daemon=True).start()
    try:
        yield
    finally:
        done.set()

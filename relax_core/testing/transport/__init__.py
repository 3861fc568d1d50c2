"""What every transport must do."""

from relax_core.testing.transport.groups import GroupRules
from relax_core.testing.transport.leases import LeaseRules
from relax_core.testing.transport.rows import RowRules
from relax_core.testing.transport.storage import StorageRules


class TransportContract(RowRules, GroupRules, LeaseRules, StorageRules):
    """Rules of :class:`relax_core.api.transport.Transport`. Subclass it and override the fixture ``make_transport``.

    ``make_transport(capacity_bytes=0, clock=None)`` builds a transport that is not open yet. A transport whose leases
    cannot be measured by a given clock sets ``supports_clock = False``: tests then wait in real time, and ``clock`` is
    never given.
    """

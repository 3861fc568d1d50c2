"""What every transport must do."""

from relax_core.testing.transport.groups import GroupRules
from relax_core.testing.transport.leases import LeaseRules
from relax_core.testing.transport.processes import ProcessRules
from relax_core.testing.transport.rows import RowRules
from relax_core.testing.transport.servers import ServerRules
from relax_core.testing.transport.storage import StorageRules


class TransportContract(RowRules, GroupRules, LeaseRules, StorageRules):
    """Rules of :class:`relax_core.api.transport.Transport`. Subclass it and override the fixture ``make_transport``.

    ``make_transport(capacity_bytes=0, clock=None)`` builds a transport that is not open yet. A transport whose leases
    cannot be measured by a given clock sets ``supports_clock = False``: tests then wait in real time, and ``clock`` is
    never given.
    """


class ProcessTransportContract(TransportContract, ProcessRules, ServerRules):
    """Rules of a transport whose ends are in several processes, with one that serves them all.

    Beside ``make_transport`` override the fixtures ``connect``, ``make_impatient`` and ``server``.
    """

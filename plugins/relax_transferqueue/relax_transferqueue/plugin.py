"""Registers the transport of this package."""

from relax_core import Component, hookimpl


@hookimpl
def relax_transports() -> list[Component]:
    """TransferQueue."""
    return [
        Component(
            "transferqueue",
            "relax_transferqueue.transport:TransferQueueTransport",
            "relax_transferqueue.config:TransferQueueTransportConfig",
            "Rows in the storage units of TransferQueue, on all nodes of a Ray cluster.",
        )
    ]

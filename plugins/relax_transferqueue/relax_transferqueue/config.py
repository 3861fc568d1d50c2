"""Settings of the transport on TransferQueue. Imports neither transfer_queue, ray nor torch."""

from pydantic import Field, model_validator

from relax_core.transports.ray.config import RayTransportConfig


class TransferQueueTransportConfig(RayTransportConfig):
    """Settings of :class:`relax_transferqueue.transport.TransferQueueTransport`."""

    units: int = Field(
        2, ge=1, description="Storage units that the run starts, on one node of the cluster after the other."
    )
    attach: bool = Field(
        False,
        description="Use the TransferQueue that somebody has started on the cluster with `transfer_queue.init`, with "
        "its storage backend; otherwise the run starts one of its own, which ends with it.",
    )

    @model_validator(mode="after")
    def _check_units(self) -> "TransferQueueTransportConfig":
        if self.attach and "units" in self.model_fields_set:
            raise ValueError("units would be ignored: with attach, TransferQueue has been started with its own")
        return self

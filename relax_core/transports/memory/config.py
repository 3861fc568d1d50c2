"""Settings of the in-process transport."""

from pydantic import Field

from relax_core.config import Config


class MemoryTransportConfig(Config):
    """Settings of :class:`relax_core.transports.memory.transport.MemoryTransport`."""

    capacity_bytes: int = Field(
        0, ge=0, description="Bytes of rows and blobs (each blob once) at which `append` waits; 0 is unbounded."
    )

"""Settings of the transport in shared memory."""

from typing import ClassVar

from pydantic import Field

from relax_core.transports.memory.config import MemoryTransportConfig


class ShmTransportConfig(MemoryTransportConfig):
    """Settings of :class:`relax_core.transports.shm.transport.ShmTransport`."""

    runtimes: ClassVar[tuple[str, ...]] = ("local", "serve")
    one_host: ClassVar[bool] = True

    call_seconds: float = Field(
        60.0, gt=0, description="What a call may take beyond the time it was asked to wait; then it is an error."
    )

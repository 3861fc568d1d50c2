"""Settings of the transport on Ray. Imports no ray."""

from typing import ClassVar

from pydantic import Field

from relax_core.transports.memory.config import MemoryTransportConfig


class RayTransportConfig(MemoryTransportConfig):
    """Settings of :class:`relax_core.transports.ray.transport.RayTransport`: those of the transport its actor holds."""

    runtimes: ClassVar[tuple[str, ...]] = ("serve",)

    call_seconds: float = Field(
        60.0, gt=0, description="What a call may take beyond the time it was asked to wait; then it is an error."
    )

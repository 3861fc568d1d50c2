"""Settings of the transport on Ray. Imports no ray."""

from typing import ClassVar

from relax_core.transports.memory.config import MemoryTransportConfig


class RayTransportConfig(MemoryTransportConfig):
    """Settings of :class:`relax_core.transports.ray.transport.RayTransport`: those of the transport its actor holds."""

    runtimes: ClassVar[tuple[str, ...]] = ("serve",)

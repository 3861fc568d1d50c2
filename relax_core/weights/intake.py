"""What an engine does with publications, whatever its model looks like: receive beside, then swap."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace

from torch import Tensor

from relax_core.api.weights import Acknowledgement, Bucket, Manifest
from relax_core.weights.inventory import Inventory


class Intake:
    """Holds what was received and verified until it is taken over.

    Args:
        inventory: Of the model as it was loaded.
    """

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self._received: tuple[Manifest, dict[str, Tensor]] | None = None

    @property
    def version(self) -> int:
        """Of the weights that serve."""
        return self.inventory.version

    async def receive(
        self, manifest: Manifest, buckets: Iterable[Bucket], base: Mapping[str, Tensor] | None = None
    ) -> None:
        """See :meth:`relax_core.api.engine.Engine.receive`; ``base`` as of :meth:`Inventory.verified`."""
        self._received = None
        arrived = await asyncio.to_thread(self.inventory.verified, manifest, buckets, base)
        self._received = manifest, arrived

    def take(
        self, manifest: Manifest, buckets: Iterable[Bucket], base: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Verified tensors: those received, where they are of the same publication; see :meth:`Inventory.verified`."""
        received, self._received = self._received, None
        if received is not None and received[0] == manifest and (manifest.kind == "full" or base is not None):
            return received[1]
        return self.inventory.verified(manifest, buckets, base)

    def release(self) -> None:
        """The model has no weights any more, and what was received beside them is given up."""
        self._received = None
        self.inventory = replace(self.inventory, released=True)

    def swapped(self, manifest: Manifest) -> Acknowledgement:
        """The model now computes with what was taken."""
        changed = self.inventory.changed(manifest)
        self.inventory = self.inventory.after(manifest)
        return Acknowledgement(manifest.version, frozenset(manifest.tensors), changed)

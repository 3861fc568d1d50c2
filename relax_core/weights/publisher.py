"""The publisher counts versions and sees to it that every engine has the newest one before anybody uses it."""

from collections.abc import Callable, Mapping, Sequence

from relax_core.api.engine import Engine
from relax_core.api.errors import WeightSyncError
from relax_core.api.trainer import Trainer
from relax_core.api.weights import Manifest, Publication, WeightSync
from relax_core.weights.probe import Probe


class Publisher:
    """Publishes a trainer's weights to engines, and probes that they compute the same.

    Args:
        engines: All receivers.
        sync: Carries the weights.
        timeout: Seconds for one publication.
        count: Adds to a counter of the run.
        probe: Compares engines with the trainer; ``None`` switches it off.
        probe_every: Publications between probes.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        sync: WeightSync,
        timeout: float,
        count: Callable[[str, int], None],
        probe: Probe | None = None,
        probe_every: int = 1,
    ) -> None:
        self._engines = engines
        self._sync = sync
        self._timeout = timeout
        self._count = count
        self._probe = probe
        self._probe_every = probe_every
        self._last: Manifest | None = None
        self.version = 0
        self.probe_gap = 0.0
        self.republished: list[int] = []
        """Versions that are only another number for the weights before; see :class:`Staleness`."""

    async def publish(self, trainer: Trainer) -> None:
        """Gives the weights the next version and returns when every engine computes with it.

        Raises:
            WeightSyncError: An engine did not acknowledge, the weights changed and did not arrive, or an engine
                computes something else than the trainer.
        """
        publication = trainer.publish(self.version + 1)
        acknowledgements = await self._sync.send(publication, self._engines, self._timeout)
        changed = self._changed(publication)
        for acknowledgement in acknowledgements:
            if acknowledgement.version != publication.manifest.version:
                raise WeightSyncError(
                    f"an engine acknowledged version {acknowledgement.version} of {publication.manifest.version}"
                )
            if changed and not acknowledgement.changed:
                raise WeightSyncError(f"version {self.version + 1} has {changed} changed tensors, and none arrived")
        if changed == 0:
            self._count("sync_unchanged", 1)
        self._last = publication.manifest
        self.version += 1
        if self.version % self._probe_every == 0:
            await self.check(trainer)

    async def republish(self, trainer: Trainer, version: int) -> None:
        """Publishes the trainer's weights, which were those of ``version``, to engines that know nothing of it."""
        self.version = version
        self.republished.append(version + 1)
        await self.publish(trainer)

    async def check(self, trainer: Trainer) -> None:
        """Probes every engine now; the largest difference is kept in ``probe_gap``, in nats."""
        if self._probe is None:
            return
        gaps = [await self._probe.check(engine, trainer, self.version) for engine in self._engines]
        self.probe_gap = max(gaps, default=0.0)

    def _changed(self, publication: Publication) -> int | None:
        """How many published tensors differ from the last publication; ``None`` before the first."""
        if self._last is None:
            return None
        before: Mapping[str, object] = self._last.tensors
        return sum(entry != before.get(name) for name, entry in publication.manifest.tensors.items())

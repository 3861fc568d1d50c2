"""The publisher counts versions and sees to it that every engine has the newest one before anybody uses it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from relax_core.api.engine import Engine, Generation
from relax_core.api.errors import WeightSyncError
from relax_core.api.trainer import Published
from relax_core.api.weights import Acknowledgement, Manifest, Publication, WeightSync
from relax_core.weights.coordinator import Coordinator
from relax_core.weights.delta import DeltaEncoder, chain, composed
from relax_core.weights.manifest import bytes_in, on_host
from relax_core.weights.probe import Probe


@dataclass(frozen=True)
class Options:
    """How publications are made.

    Args:
        verify: Whether receivers compare all bytes with their checksums.
        delta: Whether only what changed is sent to receivers that have the publication before.
        keep: Whether the newest publication is kept here, since the carrier keeps none.
    """

    verify: bool = True
    delta: bool = False
    keep: bool = False


class Publisher:
    """Publishes a trainer's weights to engines, one publication at a time, and probes that they compute the same.

    Args:
        engines: All receivers, by name; read anew at each publication.
        sync: Carries the weights.
        timeout: Seconds for one publication.
        count: Adds to a counter of the run.
        probe: Compares engines with the trainer; ``None`` switches it off.
        probe_every: Publications between probes.
        options: How publications are made.
        coordinator: Told who receives, and how it went.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        sync: WeightSync,
        timeout: float,
        count: Callable[[str, int], None],
        probe: Probe | None = None,
        probe_every: int = 1,
        options: Options | None = None,
        coordinator: Coordinator | None = None,
    ) -> None:
        self._engines = engines
        self._sync = sync
        self._timeout = timeout
        self._count = count
        self._probe = probe
        self._probe_every = probe_every
        self._options = options or Options()
        self.coordinator = coordinator or Coordinator()
        self._deltas = DeltaEncoder() if self._options.delta else None
        self._kept: list[Publication] = []
        self._last: Manifest | None = None
        self._trainer: Published | None = None
        self._sending: asyncio.Task[None] | None = None
        self._drawn: Mapping[str, Generation] = {}
        self.version = 0
        """Of the weights that the trainer published last; engines have it once nothing is ``in_flight`` any more."""
        self.acknowledged = 0
        """The newest version that every engine computes with."""
        self.comparing = True
        """Whether the trainer can compute now what the probe compares; if not, :meth:`settled` leaves it for later."""
        self.metrics: dict[str, float] = {}
        """Of the last publication and the last probe, by name; see docs/metrics.md."""
        self.arrived: Callable[[], None] = lambda: None
        """Called when a publication has ended, well or not."""
        self.republished: list[int] = []
        """Versions that are only another number for the weights before; see :class:`Staleness`."""

    @property
    def probe_gap(self) -> float:
        """Largest difference of the last probe, in nats."""
        return self.metrics.get("mismatch/probe_max", 0.0)

    @property
    def in_flight(self) -> bool:
        """Whether a publication has begun that not every engine has acknowledged."""
        return self.acknowledged < self.version

    @property
    def sending(self) -> bool:
        """Whether something is still being done for a publication that has begun."""
        return self._sending is not None and not self._sending.done()

    @property
    def failure(self) -> BaseException | None:
        """Why the publication that began last failed, if it has and :meth:`settled` has not told it."""
        ended = self._sending is not None and self._sending.done()
        return self._sending.exception() if self._sending is not None and ended else None

    async def publish(self, trainer: Published) -> None:
        """Gives the weights the next version and returns when every engine computes with it.

        Raises:
            WeightSyncError: An engine did not acknowledge, the weights changed and did not arrive, or an engine
                computes something else than the trainer.
        """
        await self.begin(trainer)
        await self.settled()

    async def again(self, trainer: Published) -> None:
        """Publishes the weights of the present version once more, whole, to engines that have released them.

        Raises:
            WeightSyncError: See :meth:`publish`.
        """
        await self.settled()
        self.version -= 1
        await self.publish(trainer)

    async def begin(self, trainer: Published) -> None:
        """Gives the weights the next version and returns when the trainer may go on. Engines take them over meanwhile;
        :meth:`before_update` must be called before the weights change.

        Raises:
            WeightSyncError: The publication before this one failed; see :meth:`publish`.
        """
        await self.settled()
        started = time.monotonic()
        self._trainer = trainer
        self.version += 1
        self.coordinator.engines(self._engines)
        full = trainer.publish(self.version)
        publication = self._encoded(replace(full, manifest=replace(full.manifest, verify=self._options.verify)))
        size = bytes_in(publication)
        self.coordinator.began(self.version, publication.manifest.kind, size)
        staged = await self._sync.stage(publication)
        snapshot = time.monotonic() - started
        self.metrics |= {"sync/bytes": float(size), "sync/exposed_s": snapshot}
        sending = self._send(staged, publication.manifest, dict(self._engines), snapshot)
        self._sending = asyncio.create_task(sending, name="publication")
        self._sending.add_done_callback(lambda task: self.arrived())

    async def settled(self) -> None:
        """Returns when nothing is on its way, and what was to be probed agrees, if the trainer can compute now.

        Raises:
            WeightSyncError: See :meth:`publish`.
        """
        if self._sending is not None:
            started = time.monotonic()
            sending, self._sending = self._sending, None
            await sending
            self.metrics["sync/exposed_s"] += time.monotonic() - started
        if self._drawn and self.comparing:
            drawn, self._drawn = self._drawn, {}
            assert self._trainer is not None
            self._compare(drawn, self._trainer)

    async def before_update(self) -> None:
        """Returns when the trainer's weights may change: at once, unless they are to be compared with an engine's.

        Raises:
            WeightSyncError: See :meth:`publish`.
        """
        if self._probed(self.version):
            await self.settled()

    async def ended(self) -> None:
        """Returns when nothing is on its way any more, however it ended; :meth:`settled` tells that."""
        if self._sending is not None:
            await asyncio.wait([self._sending])

    async def republish(self, trainer: Published, version: int) -> None:
        """Publishes the trainer's weights, which were those of ``version``, to engines that know nothing of it."""
        self.go_on_from(version)
        self.republished.append(version + 1)
        await self.publish(trainer)

    def go_on_from(self, version: int) -> None:
        """The next publication is the one after ``version``, to engines of which nothing is known."""
        self.version = self.acknowledged = version
        if self._deltas is not None:
            self._deltas.forget()

    async def check(self, trainer: Published) -> None:
        """Probes every engine; the differences are in ``metrics``, in nats, once they are compared."""
        if self._probe is not None:
            self._trainer = trainer
            self._drawn = await self._draw(self._probe, self._engines)
            await self.settled()

    def released(self) -> None:
        """The engines have no weights any more: the next publication reaches them whole."""
        self.coordinator.engines(self._engines)
        for name in self._engines:
            self.coordinator.again(name)

    def newest(self) -> Publication | None:
        """All of what every engine acknowledged last, for whoever comes late; ``None`` where nothing is kept. From any
        thread."""
        # A carrier that keeps nothing may ask the service of the run, which asks here.
        return composed(self._kept) if self._options.keep else self._sync.newest()

    async def close(self) -> None:
        """Gives up what is on its way."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])

    def _encoded(self, publication: Publication) -> Publication:
        if self._deltas is None:
            return publication
        before = None if self._last is None else self._last.version
        return self._deltas.encode(publication, whole=not self.coordinator.have(self._engines, before))

    async def _send(
        self, staged: Publication, manifest: Manifest, engines: Mapping[str, Engine], snapshot: float
    ) -> None:
        """Until every engine has the publication and, where it is to be probed, has drawn tokens with it."""
        started = time.monotonic()
        try:
            taken = await self._sync.send(staged, engines, self._timeout)
            transfer = time.monotonic() - started
            self._check_taken(taken, manifest)
            if self._options.keep:
                self._kept = chain(self._kept, await asyncio.to_thread(_apart, staged))
        except BaseException as error:
            self.coordinator.ended(manifest.version, {"snapshot": snapshot}, str(error) or type(error).__name__)
            raise
        pause = max((each.pause for each in taken.values()), default=0.0)
        seconds = {"snapshot": snapshot, "transfer": transfer - pause, "pause": pause}
        self.metrics |= {f"sync/{phase}_s": value for phase, value in seconds.items()}
        self._arrived(manifest, taken, seconds)
        if self._probe is not None and self._probed(manifest.version):
            self._drawn = await self._draw(self._probe, engines)

    def _check_taken(self, taken: Mapping[str, Acknowledgement], manifest: Manifest) -> None:
        changed = self._changed(manifest)
        for name, acknowledgement in taken.items():
            if acknowledgement.version != manifest.version:
                raise WeightSyncError(f"{name} acknowledged version {acknowledgement.version} of {manifest.version}")
            if changed and not acknowledgement.changed:
                raise WeightSyncError(f"version {manifest.version} has {changed} changed tensors, and none arrived")
        if changed == 0 and self._last is not None and self._last.version != manifest.version:
            self._count("sync_unchanged", 1)

    def _arrived(self, manifest: Manifest, taken: Mapping[str, Acknowledgement], seconds: Mapping[str, float]) -> None:
        """Every engine has the publication."""
        self._last = manifest
        self.acknowledged = manifest.version
        self.coordinator.ended(manifest.version, seconds)
        self.coordinator.reached(taken, manifest.version)
        if self._deltas is not None:
            self._deltas.acknowledged()

    def _probed(self, version: int) -> bool:
        return self._probe is not None and version % self._probe_every == 0

    async def _draw(self, probe: Probe, engines: Mapping[str, Engine]) -> Mapping[str, Generation]:
        return {name: await probe.draw(engine, self.version) for name, engine in engines.items()}

    def _compare(self, drawn: Mapping[str, Generation], trainer: Published) -> None:
        assert self._probe is not None
        gaps = {name: self._probe.compare(name, drawn[name], trainer, self.version) for name in drawn}
        self.metrics |= {f"mismatch/{name}": gap for name, gap in gaps.items()}
        self.metrics["mismatch/probe_max"] = max(gaps.values(), default=0.0)

    def _changed(self, manifest: Manifest) -> int | None:
        """How many published tensors differ from the last publication; ``None`` before the first."""
        if self._last is None:
            return None
        before: Mapping[str, object] = self._last.tensors
        return sum(entry != before.get(name) for name, entry in manifest.tensors.items())


def _apart(staged: Publication) -> Publication:
    """A publication in memory of its own: carriers use theirs again."""
    return Publication(staged.manifest, [on_host(bucket) for bucket in staged.buckets])

"""The ranks of the trainer: they make whole updates together, and the first of them publishes and saves.

As in :mod:`relax_core.runtimes.serve.model_ranks`, what they compute with is imported where they start.
"""

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import reduce
from operator import add, or_
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from ray.actor import ActorHandle

from relax_core.api.columns import ColumnSpec
from relax_core.api.trainer import Sums, Trainer
from relax_core.api.transport import Lease
from relax_core.dataflow.batching import UpdatePlan
from relax_core.runtimes.components import Builder
from relax_core.runtimes.serve.engine import RemoteEngine
from relax_core.runtimes.serve.model_ranks import ModelRank
from relax_core.runtimes.serve.recovery import TrainerPoint, recovery_points
from relax_core.runtimes.serve.together import TogetherTrainer
from relax_core.runtimes.serve.updates import MadeUpdates
from relax_core.transports.ray.calls import gather
from relax_core.weights.probe import Probe

if TYPE_CHECKING:
    from relax_core.roles.seen_logprobs import SeenLogprobs


class TrainerRank(ModelRank):
    """One data-parallel rank of the trainer, with the frozen models that share its device group."""

    def start(self, policy: Path | None) -> None:
        """Joins the others and loads the model, then what was saved of another life, if there was one."""
        assignment, config = self._assignment, self._assignment.config
        self._prepare("actor")
        self._size = assignment.ranks("actor")
        if self._size > 1:
            self._join()
        context = assignment.context(self._state.count, self._rank, self._size)
        self.trainer: Trainer = Builder(config, context).trainer(config.trainer, assignment.model, assignment.updates)
        if policy is not None:
            self.trainer.load(policy)
        self._models["actor_fwd"] = self._hold("actor", self.trainer, seen=self._seen())
        # On the host all have their memory at once, and nothing would be freed.
        self._load_frozen("actor", self.trainer if self._accelerated else None)

    @property
    def _accelerated(self) -> bool:
        from relax_core.runtimes.serve.device import accelerators_of

        return accelerators_of(self._assignment.device) > 0

    def _seen(self) -> "SeenLogprobs | None":
        from relax_core.roles.seen_logprobs import SeenLogprobs

        every = self._assignment.config.run.record.every
        return SeenLogprobs(every, self._assignment.plan.updates_per_batch) if every else None

    def _join(self) -> None:
        import torch.distributed

        # All ranks are on this machine: nothing else need hear them.
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        backend = "nccl" if self._accelerated else "gloo"
        torch.distributed.init_process_group(
            backend,
            init_method=f"file://{self._meeting}",
            rank=self._rank,
            world_size=self._size,
            timeout=timedelta(seconds=self._timeout),
        )

    def accumulate(self, lease: Lease, update: UpdatePlan, number: int, first: bool) -> Sums:
        """This rank's rows of one update. What somebody who is gone left half done is forgotten first."""
        if first:
            self.trainer.discard()
        return self._models["actor"].accumulate(lease, update, number)

    def apply(self, denominator: float) -> Mapping[str, float]:
        """See :meth:`relax_core.api.trainer.Trainer.apply`."""
        with self._timeline.span("actor", "apply"):
            return self.trainer.apply(denominator)

    def logprobs(self) -> dict[int, npt.NDArray[np.generic]]:
        """Of this rank's rows of the present batch, if it is kept."""
        return {} if self._models["actor"].seen is None else self._models["actor"].seen.logprobs

    def take_part(self, method: str, *arguments: Any) -> None:
        """What rank 0 does with a trainer whose ranks hold parts of the model; see :class:`TogetherTrainer`."""
        getattr(self.trainer, method)(*arguments)


class LeadingRank(TrainerRank):
    """Rank 0: makes whole updates with the others, publishes, saves."""

    def lead(
        self, others: Sequence[ActorHandle], point: TrainerPoint, version: int, unpublished: bool, probe: Probe | None
    ) -> None:
        """Meets the others, and goes on from a point.

        Args:
            others: All other ranks.
            point: What was loaded.
            version: The one that was published last.
            unpublished: Whether these weights were not.
            probe: Of what is published.
        """
        from relax_core.runtimes.publishing import make_publisher, open_service
        from relax_core.runtimes.serve.publications import RankPublications
        from relax_core.runtimes.shared_device import Device, SharedDevice

        context = self._assignment.context(self._state.count)
        engines = {name: RemoteEngine(self._assignment, self._state, name) for name in self._assignment.engines}
        sync = self._assignment.config.weight_sync.build(context)
        self._others = others
        self._together = TogetherTrainer(self.trainer, others, self._timeout)
        publisher = make_publisher(self._assignment.config, engines, sync, self._state.count, probe, 1 + len(others))
        publisher.go_on_from(version)
        self._service = open_service(self._assignment.config, publisher, self._assignment.directory)
        turns = self._assignment.takes_turns
        device = SharedDevice(engines, self._together, publisher, released=False) if turns else Device()
        self._publications = RankPublications(
            publisher, self._together, self._state, self._timeline, self._timeout, device
        )
        self._publications.take_turn()
        self._unpublished = unpublished
        self._per_batch = self._assignment.plan.updates_per_batch
        self._updates = MadeUpdates(self._per_batch, point.update, point.made)
        self._points = recovery_points(self._assignment.directory)

    def standing(self) -> int:
        """Number of the last update that was made."""
        return self._updates.last

    def accumulate_all(self, lease: Lease, update: UpdatePlan, number: int, first: bool) -> None:
        """See :meth:`relax_core.roles.ranks.Ranks.accumulate`."""

        def compute() -> Sums:
            self._publications.take_turn()
            pending = [other.accumulate.remote(lease, update, number, first) for other in self._others]
            own = self.accumulate(lease, update, number, first)
            return reduce(add, gather(pending, "accumulate", self._timeout), own)

        rows = [int(lease.table.ids[row]) for rank in update.ranks for part in rank for row in part]
        self._updates.accumulate(number, rows, first, compute)

    def forward_all(self, lease: Lease, update: UpdatePlan, column: ColumnSpec, version: int) -> None:
        """See :meth:`relax_core.roles.ranks.Ranks.forward`."""
        self._publications.take_turn()
        super().forward_all(lease, update, column, version)

    def apply_all(self, number: int) -> tuple[Sums, Mapping[str, float]]:
        """See :meth:`relax_core.roles.ranks.Ranks.apply`.

        Raises:
            TrainingError: The update of that number was made with other rows.
        """
        last = self._updates.last
        result = self._updates.apply(number, lambda sums: self._apply(sums.weight))
        if self._updates.last > last:
            self._keep_point()
        return result

    def _keep_point(self) -> None:
        """Saves what the ranks need to come back as they are now, at the end of a batch."""
        batch, rest = divmod(self._updates.last, self._per_batch)
        every = self._assignment.config.run.serve.recovery_every
        if every and not rest and not batch % every:
            state = {"version": self._publications.version + 1, "made": self._updates.state()}
            self._points.write(self._updates.last, self.save, state)

    def logprobs_of_all(self) -> Mapping[int, npt.NDArray[np.generic]]:
        """See :meth:`relax_core.roles.ranks.Ranks.logprobs`."""
        pending = [other.logprobs.remote() for other in self._others]
        return reduce(or_, gather(pending, "logprobs", self._timeout), self.logprobs())

    def _apply(self, denominator: float) -> Mapping[str, float]:
        self._publications.before_update()
        self._unpublished = True
        pending = [other.apply.remote(denominator) for other in self._others]
        try:
            metrics = self.apply(denominator)
        except RuntimeError:
            # Gloo says only that a connection was closed: whose rank died is the better error.
            gather(pending, "apply", self._assignment.config.run.serve.rank_timeout)
            raise
        gather(pending, "apply", self._timeout)
        return metrics

    def publish(self, beside: bool) -> None:
        """Publishes what was trained since the last time; see :meth:`RankPublications.publish`. If nothing was, engines
        that the trainer had the device of have it again, and the weights of before."""
        if self._unpublished:
            self._publications.publish(beside)
            self._unpublished = False
        else:
            self._publications.give_turn()

    def settle(self) -> None:
        """Returns when engines have what was published, and tells a state that may not have heard of it."""
        self._publications.settle()

    def save(self, directory: Path) -> None:
        """See :meth:`relax_core.api.trainer.Trainer.save`."""
        with self._timeline.span("checkpoint", "save"):
            self._together.save(directory)

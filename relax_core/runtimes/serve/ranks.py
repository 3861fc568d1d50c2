"""The trainer's ranks, each in a process of its own. The first leads: fronts call it alone, and it calls the others.

A front may be killed between any two of its calls. Did it call every rank itself, some would have been called and wait
in a collective for the others for ever.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import reduce
from operator import add
from pathlib import Path

import ray
import torch.distributed
from ray.actor import ActorHandle

from relax_core.api.columns import ColumnSpec
from relax_core.api.trainer import Sums, Trainer
from relax_core.api.transport import Lease
from relax_core.dataflow.batching import UpdatePlan
from relax_core.roles.objective import Objective
from relax_core.roles.training import TrainingRank
from relax_core.runtimes.components import Builder
from relax_core.runtimes.serve.assignment import ENGINE, Assignment
from relax_core.runtimes.serve.device import accelerators_of, prepare_device
from relax_core.runtimes.serve.engine import RemoteEngine
from relax_core.runtimes.serve.proxies import StateClient
from relax_core.runtimes.serve.updates import MadeUpdates
from relax_core.transports.ray.calls import gather
from relax_core.weights.probe import Probe
from relax_core.weights.publisher import Publisher

BESIDE = "beside"
"""Concurrency group of what a rank answers while it works."""


class TrainerRank:
    """One data-parallel rank of the trainer.

    Args:
        assignment: What the run does.
        rank: Which one this is.
        meeting: File by which the ranks find each other.
    """

    def __init__(self, assignment: Assignment, rank: int, meeting: Path) -> None:
        self._assignment = assignment
        self._rank = rank
        self._size = assignment.config.run.serve.actor_ranks
        self._timeout = assignment.config.run.serve.step_timeout
        self._meeting = meeting

    def start(self, checkpoint: Path | None) -> None:
        """Joins the others and loads the model, then what a checkpoint holds."""
        assignment, config = self._assignment, self._assignment.config
        prepare_device(assignment)
        if self._size > 1:
            self._join()
        self._state = StateClient(assignment.run_id)
        context = assignment.context(self._state.count, self._rank, self._size)
        self.trainer: Trainer = Builder(config, context).trainer(config.trainer, assignment.model, assignment.updates)
        if checkpoint is not None:
            self.trainer.load(checkpoint)
        staged = assignment.context(self._state.count, self._rank, self._size, staged=True)
        objective = Objective(config.algorithm.build(staged), assignment.plan.old)
        transport = assignment.transport(self._state.count)
        temperature = config.run.sampling.temperature
        self._training = TrainingRank(assignment.plan, self.trainer, transport, objective, temperature, self._rank)

    def _join(self) -> None:
        # All ranks are on this machine: nothing else need hear them.
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        backend = "nccl" if accelerators_of(self._assignment.device) else "gloo"
        torch.distributed.init_process_group(
            backend,
            init_method=f"file://{self._meeting}",
            rank=self._rank,
            world_size=self._size,
            timeout=timedelta(seconds=self._timeout),
        )

    def accumulate(self, lease: Lease, update: UpdatePlan) -> Sums:
        """This rank's rows of one update. What somebody who is gone left half done is forgotten first."""
        self.trainer.discard()
        return self._training.accumulate(lease, update)

    def apply(self, denominator: float) -> Mapping[str, float]:
        """See :meth:`relax_core.api.trainer.Trainer.apply`."""
        return self.trainer.apply(denominator)

    def forward(self, lease: Lease, update: UpdatePlan, column: ColumnSpec, version: int) -> None:
        """Writes the column for this rank's rows."""
        self._training.forward(lease, update, column, version)

    @ray.method(concurrency_group=BESIDE)
    def ping(self) -> bool:
        """Answers beside the work."""
        return True


class LeadingRank(TrainerRank):
    """Rank 0: makes whole updates with the others, publishes, saves."""

    def lead(self, others: Sequence[ActorHandle], version: int, probe: Probe | None) -> None:
        """Meets the others, and goes on from the version that was published last."""
        run = self._assignment.config.run
        context = self._assignment.context(self._state.count)
        engines = {ENGINE: RemoteEngine(self._assignment, self._state)}
        sync = self._assignment.config.weight_sync.build(context)
        every = max(run.probe.every, 1)
        self._others = others
        self._publisher = Publisher(engines, sync, run.timeouts.weight_sync, self._state.count, probe, every)
        self._publisher.go_on_from(version)
        self._updates = MadeUpdates(self._assignment.plan.updates_per_batch)
        self._unpublished = True

    @ray.method(concurrency_group=BESIDE)
    def prefers_groups(self) -> bool:
        """That of the trainer."""
        return self.trainer.prefers_groups

    def train(self, lease: Lease, update: UpdatePlan, number: int) -> tuple[Sums, Mapping[str, float]]:
        """See :meth:`relax_core.roles.ranks.Ranks.train`.

        Raises:
            TrainingError: The update of that number was made with other rows.
        """
        rows = tuple(int(lease.table.ids[row]) for rank in update.ranks for part in rank for row in part)
        return self._updates.once(number, rows, lambda: self._make(lease, update))

    def _make(self, lease: Lease, update: UpdatePlan) -> tuple[Sums, Mapping[str, float]]:
        sums = self._accumulate(lease, update)
        self._unpublished = True
        return sums, self._apply(sums.weight)

    def _accumulate(self, lease: Lease, update: UpdatePlan) -> Sums:
        pending = [other.accumulate.remote(lease, update) for other in self._others]
        own = self.accumulate(lease, update)
        return reduce(add, gather(pending, "accumulate", self._timeout), own)

    def _apply(self, denominator: float) -> Mapping[str, float]:
        pending = [other.apply.remote(denominator) for other in self._others]
        metrics = self.apply(denominator)
        gather(pending, "apply", self._timeout)
        return metrics

    def forward_all(self, lease: Lease, update: UpdatePlan, column: ColumnSpec, version: int) -> None:
        """See :meth:`relax_core.roles.ranks.Ranks.forward`."""
        pending = [other.forward.remote(lease, update, column, version) for other in self._others]
        self.forward(lease, update, column, version)
        gather(pending, "forward", self._timeout)

    def publish(self) -> tuple[int, float]:
        """Publishes what was trained since the last time; returns the version and the probe's gap."""
        if self._unpublished:
            asyncio.run(self._publisher.publish(self.trainer))
            self._unpublished = False
        return self._publisher.version, self._publisher.probe_gap

    def save(self, directory: Path) -> None:
        """See :meth:`relax_core.api.trainer.Trainer.save`."""
        self.trainer.save(directory)

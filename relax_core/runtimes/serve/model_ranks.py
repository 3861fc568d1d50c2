"""Ranks hold models, each in a process of its own. The first leads: fronts call it alone, and it calls the others.

A front may be killed between any two of its calls. Did it call every rank itself, some would have been called and wait
in a collective for the others for ever.

Whoever calls a rank loads its class: what the rank itself computes with is imported where it starts.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import ray
from ray.actor import ActorHandle

from relax_core.api.columns import ColumnSpec
from relax_core.api.trainer import Trainer
from relax_core.api.transport import Lease
from relax_core.dataflow.batching import UpdatePlan
from relax_core.dataflow.plan import FROZEN
from relax_core.runtimes.components import Builder
from relax_core.runtimes.serve.assignment import Assignment, rank_name
from relax_core.runtimes.serve.proxies import StateClient
from relax_core.runtimes.serve.spans import process_timeline
from relax_core.transports.ray.calls import gather

if TYPE_CHECKING:
    from relax_core.roles.seen_logprobs import SeenLogprobs
    from relax_core.roles.training import TrainingRank

BESIDE = "beside"
"""Concurrency group of what a rank answers while it works."""


class ModelRank:
    """One rank of the models of a front.

    Args:
        assignment: What the run does.
        rank: Which one this is.
        meeting: File by which ranks that compute together find each other.
    """

    def __init__(self, assignment: Assignment, rank: int, meeting: Path) -> None:
        self._assignment = assignment
        self._rank = rank
        self._meeting = meeting
        self._timeout = assignment.config.run.serve.step_timeout
        self._others: Sequence[ActorHandle] = ()
        self._models: dict[str, TrainingRank] = {}
        """By the role that computes with the model."""

    def _prepare(self, front: str) -> None:
        """This process, and what all its models share."""
        from relax_core.roles.objective import Objective
        from relax_core.runtimes.serve.device import prepare_device

        assignment = self._assignment
        self._timeline = process_timeline(assignment.directory, rank_name(front, self._rank))
        prepare_device(assignment)
        self._state = StateClient(assignment.run_id)
        algorithm = assignment.config.algorithm.build(assignment.context(self._state.count, staged=True))
        self._objective = Objective(algorithm, assignment.plan.old)
        self._transport = assignment.transport(self._state.count)

    def connect(self) -> None:
        """Meets the transport that has taken the place of the one before."""
        self._transport = self._assignment.transport(self._state.count)
        self._models = {role: replace(model, transport=self._transport) for role, model in self._models.items()}

    def _load_frozen(self, front: str, lender: Trainer | None = None) -> None:
        """Loads the models of a front that are never trained: each rank has whole ones, which know of no others.

        Args:
            front: Its name.
            lender: Has the device, and gives it to them in turn.
        """
        assignment = self._assignment
        builder = Builder(assignment.config, assignment.context(self._state.count))
        models = builder.frozen_models(assignment.plan, assignment.model)
        for role in assignment.fronts[front]:
            if role in FROZEN:
                source, temperature = models[role]
                self._hold(role, builder.frozen(source), temperature, lender=lender)

    def _hold(
        self,
        role: str,
        trainer: Trainer,
        temperature: float | None = None,
        seen: "SeenLogprobs | None" = None,
        lender: Trainer | None = None,
    ) -> "TrainingRank":
        """A model for a role, at its own temperature or that of the policy."""
        from relax_core.roles.training import TrainingRank

        self._models[role] = TrainingRank(
            self._assignment.plan,
            trainer,
            self._transport,
            self._objective,
            temperature or self._assignment.temperature,
            self._rank,
            seen,
            self._timeline,
            lender,
        )
        return self._models[role]

    def forward(self, lease: Lease, update: UpdatePlan, column: ColumnSpec, version: int) -> None:
        """Writes the column of the role that holds the lease, for this rank's rows."""
        self._models[lease.consumer].forward(lease, update, column, version)

    def forward_all(self, lease: Lease, update: UpdatePlan, column: ColumnSpec, version: int) -> None:
        """On all ranks; see :meth:`relax_core.roles.ranks.Ranks.forward`."""
        pending = [other.forward.remote(lease, update, column, version) for other in self._others]
        self.forward(lease, update, column, version)
        gather(pending, "forward", self._timeout)

    @ray.method(concurrency_group=BESIDE)
    def prefers_groups(self) -> bool:
        """That of the models."""
        return any(model.trainer.prefers_groups for model in self._models.values())

    @ray.method(concurrency_group=BESIDE)
    def ping(self) -> bool:
        """Answers beside the work."""
        return True


class FrozenRank(ModelRank):
    """A rank of models that are never trained and have a device of their own."""

    def start(self, front: str) -> None:
        """Loads the models of a front."""
        self._prepare(front)
        self._load_frozen(front)

    def lead(self, others: Sequence[ActorHandle]) -> None:
        """Calls the others from here on."""
        self._others = others

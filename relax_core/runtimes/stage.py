"""A stage: one algorithm on one dataset with one trainer; a run has a main stage and perhaps a warm-up."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from relax_core.api.algorithm import Algorithm
from relax_core.api.columns import ColumnSpec
from relax_core.api.dataset import Dataset
from relax_core.api.engine import Engine, SamplingParameters
from relax_core.api.trainer import Trainer
from relax_core.api.transport import Transport
from relax_core.checkpoint.batches import BatchRecord
from relax_core.config.run import BatchConfig, RolloutConfig
from relax_core.dataflow import columns as core
from relax_core.dataflow.ledger import Ledger, LedgerError
from relax_core.dataflow.placement import lanes
from relax_core.dataflow.plan import FROZEN, HOST, Plan
from relax_core.dataflow.staleness import Admission, Staleness
from relax_core.metrics.activity import Activity
from relax_core.metrics.hub import MetricHub
from relax_core.metrics.timeline import Timeline
from relax_core.roles.actor import Actor
from relax_core.roles.advantages import Advantages
from relax_core.roles.batches import BatchLog
from relax_core.roles.collaborators import Prompts
from relax_core.roles.forward import ForwardRole
from relax_core.roles.objective import Objective
from relax_core.roles.preference import Preference
from relax_core.roles.ranks import Ranks
from relax_core.roles.recorder import BatchRecorder
from relax_core.roles.reward import RewardRole
from relax_core.roles.role import Role
from relax_core.roles.rollout import Rollout
from relax_core.roles.scoring import Scorer
from relax_core.roles.seen_logprobs import SeenLogprobs
from relax_core.roles.source import Source
from relax_core.roles.streaming import StreamingActor
from relax_core.roles.supervised import Supervised
from relax_core.roles.training import LocalRanks, TrainingRank
from relax_core.runtimes.record import StageFacts
from relax_core.runtimes.shared_device import Device
from relax_core.weights.publisher import Publisher


@dataclass(frozen=True)
class FrozenModel:
    """A model that only ever computes, and the temperature of what it computes; ``None``: that of the policy."""

    trainer: Trainer
    temperature: float | None = None


@dataclass(frozen=True)
class StageParts:
    """What a stage is made of; engine, scorer and frozen models only where the plan has their roles.

    ``accelerated`` says that models are on a device whose memory is its own; ``record`` stores batches, one of so
    many; ``spans`` stores what the roles did when; ``batches_ahead`` may be generated beyond the next one;
    ``publications`` are what ``publish`` leaves going on beside training, where it does; ``device`` is where engine and
    trainer have their memory.
    """

    plan: Plan
    batch: BatchConfig
    dataset: Dataset
    algorithm: Algorithm
    trainer: Trainer
    transport: Transport
    ledger: Ledger
    prompts: Prompts
    hub: MetricHub
    sampling: SamplingParameters
    rollout: RolloutConfig
    seed: int
    epochs: int | None
    needed: int | None
    staleness: Staleness
    batches_ahead: int
    max_prompt_tokens: int | None
    generation_timeout: float
    version: Callable[[], int]
    publish: Callable[[], Awaitable[None]]
    report: Callable[[int, dict[str, float]], None]
    spans: Callable[[Mapping[str, Any]], None]
    record: tuple[Callable[[BatchRecord], None], int] | None = None
    publications: Publisher | None = None
    device: Device = field(default_factory=Device)
    accelerated: bool = False
    engine: Engine | None = None
    scorer: Scorer | None = None
    frozen: Mapping[str, FrozenModel] = field(default_factory=dict)


class Stage:
    """The roles of a plan, wired.

    Args:
        parts: See :class:`StageParts`.
    """

    def __init__(self, parts: StageParts) -> None:
        self.parts = parts
        admission = Admission(parts.batch.tasks, parts.batches_ahead, parts.rollout.surplus)
        self.batches = BatchLog(parts.ledger)
        self.source = Source(
            parts.dataset, parts.seed, parts.ledger, admission, parts.epochs, parts.needed, self._in_publication
        )
        self.rollout: Rollout | None = None
        self._temperature = 1.0 if parts.plan.requirements.supervised else parts.sampling.temperature
        self._recorder, seen = None, None
        if parts.record is not None:
            write, every = parts.record
            self._recorder = BatchRecorder(write, every, self._temperature)
            seen = SeenLogprobs(every, parts.plan.updates_per_batch)
        self._held: list[LocalRanks] = []
        self.ranks = self._ranks(parts.trainer, self._temperature, seen, parts.publications)
        parts.transport.open(parts.plan.columns, parts.plan.consumers)
        self._activity = Activity()
        self.actor = self._actor()
        self.roles: tuple[Role, ...] = tuple(
            self._role(role.name) for role in parts.plan.roles if role.name != "source"
        )
        self.timeline = Timeline(parts.spans, lambda: self.actor.updates, self._activity)
        parts.device.timeline = self.timeline
        for role in self.roles:
            role.timeline = self.timeline

    @property
    def shares_device(self) -> bool:
        """Whether all models hold one device, so that roles must take turns."""
        return len({role.device_group for role in self.parts.plan.roles} - {HOST}) == 1

    @property
    def lanes(self) -> list[list[Role]]:
        """The roles as the plan's device groups let them work at the same time."""
        roles = {role.name: role for role in self.roles}
        return [[roles[name] for name in names] for names in lanes(self.parts.plan)]

    async def before_turn(self, role: Role) -> None:
        """What generates is given the device for its turn; trainer and frozen models take it when they have rows."""
        if role is self.rollout:
            await self.parts.device.for_engines()

    def _role(self, name: str) -> Role:
        builders: Mapping[str, Callable[[], Role]] = {
            "rollout": self._rollout,
            "supervised": lambda: self._labelled(Supervised),
            "preference": lambda: self._labelled(Preference),
            "reward": self._reward,
            **{name: partial(self._frozen, name) for name in FROZEN},
            "actor_fwd": self._actor_forward,
            "advantages": self._advantages,
            "actor": lambda: self.actor,
        }
        return builders[name]()

    def _rollout(self) -> Role:
        parts = self.parts
        assert parts.engine is not None
        self.rollout = Rollout(
            self.source,
            parts.engine,
            parts.transport,
            parts.prompts,
            parts.ledger,
            parts.sampling,
            parts.batch.samples_per_task,
            parts.seed,
            parts.max_prompt_tokens,
            parts.generation_timeout,
            parts.rollout,
        )
        return self.rollout

    def _labelled(self, role: type[Supervised]) -> Role:
        parts = self.parts
        return role(self.source, parts.transport, parts.prompts, parts.ledger, parts.max_prompt_tokens)

    def _reward(self) -> Role:
        parts = self.parts
        assert parts.scorer is not None
        drop_equal = parts.rollout.drop_equal_rewards
        return RewardRole(parts.transport, parts.scorer, parts.prompts, parts.ledger, parts.hub, drop_equal)

    def _frozen(self, name: str) -> Role:
        model = self.parts.frozen[name]
        ranks = self._ranks(model.trainer, model.temperature or self._temperature, lender=self._lender(name))
        return self._forward(name, FROZEN[name], ranks, lambda: 0)

    def _actor_forward(self) -> Role:
        return self._forward("actor_fwd", core.OLD_LOGPROBS, self.ranks, self.parts.version, True)

    def _forward(
        self, name: str, column: ColumnSpec, ranks: Ranks, version: Callable[[], int], next_batch_only: bool = False
    ) -> Role:
        return ForwardRole(name, column, ranks, version, self.parts.transport, self.parts.batch, next_batch_only)

    def _lender(self, name: str) -> Trainer | None:
        """The trainer, for a role that shares its device; on the host nothing would be freed."""
        role, actor = self.parts.plan.role(name), self.parts.plan.role("actor")
        assert role is not None and actor is not None
        shares = role.device_group == actor.device_group and self.parts.accelerated
        return self.parts.trainer if shares else None

    def _ranks(
        self,
        trainer: Trainer,
        temperature: float,
        seen: SeenLogprobs | None = None,
        publications: Publisher | None = None,
        lender: Trainer | None = None,
    ) -> Ranks:
        parts = self.parts
        objective = Objective(parts.algorithm, parts.plan.old)
        rank = TrainingRank(parts.plan, trainer, parts.transport, objective, temperature, seen=seen, lender=lender)
        before_update = None if publications is None else publications.before_update
        self._held.append(LocalRanks(rank, before_update, parts.device.for_trainer))
        return self._held[-1]

    def _advantages(self) -> Role:
        parts = self.parts
        return Advantages(parts.algorithm, parts.plan.requirements, parts.transport, parts.batch.tasks)

    def _actor(self) -> Actor:
        parts, engine = self.parts, self.parts.engine
        arguments: tuple[Any, ...] = (
            parts.plan,
            parts.batch,
            self.ranks,
            parts.transport,
            self.batches,
            parts.version,
            parts.publish,
            parts.report,
            parts.staleness,
            parts.seed,
            self._recorder,
            None if engine is None else (lambda: engine.generated_tokens),
            self._activity.totals,
            parts.publications,
        )
        if parts.batch.streaming:
            return StreamingActor(*arguments, grows=self._grows)
        return Actor(*arguments)

    def _grows(self, groups: int) -> bool:
        """Whether more groups may become ready than the so many that the actor has."""
        return not self.source.exhausted or len(self.parts.ledger.pending) > groups

    def _in_publication(self) -> int:
        """Groups of the batch whose weights are on their way."""
        publications = self.parts.publications
        return len(self.batches.finished) if publications is not None and publications.in_flight else 0

    async def close(self) -> None:
        """Gives up what still runs."""
        for role in self.roles:
            await role.close()
        for ranks in self._held:
            ranks.close()

    def facts(self) -> StageFacts:
        """What the stage has done so far."""
        ledger, rollout = self.parts.ledger, self.rollout
        tokens, seconds = (rollout.generated_tokens, rollout.seconds) if rollout else (0, 0.0)
        return StageFacts(self.actor.state(), ledger.counts(), ledger.reasons, tokens, seconds)

    def state(self) -> dict[str, Any]:
        """Where the stage stands between two batches, as JSON values; the rows are the transport's to store."""
        return {
            "source": self.source.state(),
            "ledger": self.parts.ledger.state(),
            "actor": self.actor.state(),
            "rollout": self.rollout.state() if self.rollout else {},
            "republished": list(self.parts.staleness.republished),
        }

    def restore(self, state: Mapping[str, Any], rows: Mapping[str, Any]) -> None:
        """Continues where :meth:`state` stood and the transport held ``rows``.

        Raises:
            LedgerError: Groups that the ledger knows to be generated are not among the rows.
        """
        self.source.restore(state["source"])
        self.parts.ledger.restore(state["ledger"])
        self.actor.restore(state["actor"])
        if self.rollout is not None:
            self.rollout.restore(state["rollout"])
        self.parts.staleness.republished[:] = state["republished"]
        if rows:
            # Whether the stream has ended is the source's to say: the run may have been given further epochs.
            self.parts.transport.restore({**rows, "finished": False})
        generated = {group for group, stage in self.parts.ledger.pending.items() if stage == "generated"}
        held = self.parts.transport.depth()["groups"]
        if held != len(generated):
            raise LedgerError(f"the checkpoint has rows of {held} groups, its ledger {len(generated)} generated ones")

"""Builds the roles of a front: the classes that every runtime runs, with collaborators from afar.

A role's own modules are imported where it is built, so that a front loads only what its roles need.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from relax_core.api.algorithm import Algorithm
from relax_core.api.transport import Transport
from relax_core.dataflow.placement import publishes_beside
from relax_core.dataflow.plan import FROZEN
from relax_core.roles.role import Role
from relax_core.runtimes.serve.assignment import Assignment
from relax_core.runtimes.serve.proxies import RemoteBatches, RemoteLedger, RemoteReporter, RemoteSource, StateClient
from relax_core.runtimes.serve.remote_ranks import RemoteRanks
from relax_core.runtimes.serve.spans import process_timeline

if TYPE_CHECKING:
    from relax_core.models.prompts import PromptCodec
    from relax_core.roles.collaborators import Prompts
    from relax_core.roles.recorder import BatchRecorder
    from relax_core.roles.supervised import Supervised

PATIENCE = 1.0
"""Seconds that a step waits for work where its role has a front of its own."""

SHORT_PATIENCE = 0.05
"""Seconds that it waits where others of the front may have work."""


@dataclass(frozen=True)
class Surroundings:
    """What a front's roles are built of.

    Args:
        assignment: What the run does.
        state: The state of the run.
        transport: This process's end of the transport.
    """

    assignment: Assignment
    state: StateClient
    transport: Transport


class Turn:
    """When the roles of a front may work: always, where their ranks have a device of their own."""

    async def begun(self) -> bool:
        """Whether they may work now; waits a while for it."""
        return True

    async def end(self) -> None:
        """They have nothing more to do."""


@dataclass(frozen=True)
class SharedTurn(Turn):
    """Roles whose ranks share a device with engines work when these have generated what the next batch needs.

    Args:
        state: Knows what is being generated.
        ranks: Take the device when they compute.
    """

    state: StateClient
    ranks: RemoteRanks

    async def begun(self) -> bool:
        over: bool = await self.state.ask("generation_over", 0.0)
        if not over:
            await self.end()
            over = await self.state.ask("generation_over", PATIENCE, wait=PATIENCE)
        return over

    async def end(self) -> None:
        """The engines are given the device."""
        await self.ranks.publish(beside=False)


async def build_roles(front: str, around: Surroundings) -> tuple[list[Role], Turn]:
    """The planned roles of a front, patient, and their turn."""
    builder = RoleBuilder(front, around)
    names = around.assignment.fronts[front]
    roles = [await builder.build(name) for name in names]
    timeline = process_timeline(around.assignment.directory, front, _updates_of(roles))
    for role in roles:
        if role.name != "rollout":  # for which its front waits
            role.patience = PATIENCE if len(roles) == 1 else SHORT_PATIENCE
        role.shared = around.assignment.config.run.serve.front(front).replicas > 1
        role.timeline = timeline
    return roles, builder.turn()


def _updates_of(roles: Sequence[Role]) -> Callable[[], int] | None:
    """Updates done so far, where the actor is among the roles."""
    actor: Any = next((role for role in roles if role.name == "actor"), None)
    return None if actor is None else lambda: int(actor.updates)


class RoleBuilder:
    """Builds one role after the other; those that need ranks share those of the front.

    Args:
        front: Its name.
        around: What roles are built of.
    """

    def __init__(self, front: str, around: Surroundings) -> None:
        self._front = front
        self._assignment, self._state, self._transport = around.assignment, around.state, around.transport
        self._plan, self._run = self._assignment.plan, self._assignment.config.run

    async def build(self, name: str) -> Role:
        """The role of that name."""
        builders: Mapping[str, Callable[[], Awaitable[Role]]] = {
            "rollout": self._rollout,
            "supervised": self._supervised,
            "preference": self._preference,
            "reward": self._reward,
            **{frozen: partial(self._frozen, frozen) for frozen in FROZEN},
            "actor_fwd": self._actor_forward,
            "advantages": self._advantages,
            "actor": self._actor,
        }
        return await builders[name]()

    def turn(self) -> Turn:
        """When the front's roles may work."""
        shared = self._front == "actor" and self._plan.role("rollout") is not None and self._assignment.takes_turns
        return SharedTurn(self._state, self._ranks) if shared else Turn()

    @cached_property
    def _ranks(self) -> RemoteRanks:
        return RemoteRanks(self._assignment, self._front, self._state)

    def _codec(self) -> "PromptCodec":
        from relax_core.models.prompts import PromptCodec

        return PromptCodec(self._assignment.model_source(), self._run.prompt.format)

    def _prompts(self) -> "Prompts":
        from relax_core.runtimes.components import Builder

        assignment = self._assignment
        tell = partial(self._state, "tell", "event")
        builder = Builder(assignment.config, assignment.context(self._state.count), tell)
        return builder.prompts(assignment.model, builder.codec(assignment.model))

    def _algorithm(self) -> Algorithm:
        algorithm: Algorithm = self._assignment.config.algorithm.build(
            self._assignment.context(self._state.count, staged=True)
        )
        return algorithm

    def _version(self) -> int:
        published: int = self._state("version")
        return published

    async def _rollout(self) -> Role:
        from relax_core.roles.rollout import Rollout
        from relax_core.runtimes.components import sampling_parameters
        from relax_core.runtimes.serve.fleet import open_fleet

        run = self._run
        return Rollout(
            RemoteSource(self._state),
            await open_fleet(self._assignment, self._state, tells=True),
            self._transport,
            self._prompts(),
            RemoteLedger(self._state),
            sampling_parameters(run.sampling),
            run.batch.samples_per_task,
            self._assignment.seed,
            run.prompt.max_tokens,
            run.timeouts.generation,
            run.rollout,
        )

    async def _supervised(self) -> Role:
        from relax_core.roles.supervised import Supervised

        return self._labelled(Supervised)

    async def _preference(self) -> Role:
        from relax_core.roles.preference import Preference

        return self._labelled(Preference)

    def _labelled(self, role: "type[Supervised]") -> Role:
        source, ledger = RemoteSource(self._state), RemoteLedger(self._state)
        return role(source, self._transport, self._prompts(), ledger, self._run.prompt.max_tokens)

    async def _reward(self) -> Role:
        from relax_core.roles.reward import RewardRole
        from relax_core.runtimes.components import Builder

        config = self._assignment.config
        scorer = Builder(config, self._assignment.context(self._state.count)).scorer(config.rewards)
        await scorer.start()
        ledger, reporter = RemoteLedger(self._state), RemoteReporter(self._state)
        drop_equal = self._run.rollout.drop_equal_rewards
        return RewardRole(self._transport, scorer, self._codec(), ledger, reporter, drop_equal)

    async def _frozen(self, name: str) -> Role:
        from relax_core.roles.forward import ForwardRole

        return ForwardRole(name, FROZEN[name], self._ranks, lambda: 0, self._transport, self._run.batch)

    async def _actor_forward(self) -> Role:
        from relax_core.dataflow import columns as core
        from relax_core.roles.forward import ForwardRole

        ranks, batch = self._ranks, self._run.batch
        return ForwardRole("actor_fwd", core.OLD_LOGPROBS, ranks, self._version, self._transport, batch, True)

    async def _advantages(self) -> Role:
        from relax_core.roles.advantages import Advantages

        return Advantages(self._algorithm(), self._plan.requirements, self._transport, self._run.batch.tasks)

    async def _actor(self) -> Role:
        from relax_core.dataflow.staleness import Staleness
        from relax_core.roles.actor import Actor
        from relax_core.roles.streaming import StreamingActor

        batches = RemoteBatches(self._state)
        arguments: tuple[Any, ...] = (
            self._plan,
            self._run.batch,
            self._ranks,
            self._transport,
            batches,
            self._version,
            self._publish,
            self._report,
            Staleness(self._run.max_staleness, self._run.on_stale, self._state("republished")),
            self._assignment.seed,
        )
        named: dict[str, Any] = {"recorder": self._recorder(), "beside": partial(self._state, "beside")}
        if self._run.batch.streaming:
            actor: Actor = StreamingActor(*arguments, grows=partial(self._state, "grows"), **named)
        else:
            actor = Actor(*arguments, **named)
        actor.restore(batches.counters)
        return actor

    def _recorder(self) -> "BatchRecorder | None":
        """Stores batches in the run's folder, where they are to be stored."""
        from relax_core.checkpoint.batches import BATCHES, BatchStore
        from relax_core.roles.recorder import BatchRecorder

        settings = self._run.record
        if not settings.every:
            return None
        store = BatchStore(self._assignment.directory / BATCHES, settings.keep)
        return BatchRecorder(store.write, settings.every, self._assignment.temperature)

    async def _publish(self) -> None:
        """Where nothing is generated for training, weights are published when somebody is going to evaluate them."""
        if self._plan.role("rollout") is not None:
            run = self._run
            await self._ranks.publish(publishes_beside(self._plan, run.max_staleness, run.publication.overlap))

    def _report(self, update: int, metrics: dict[str, float]) -> None:
        self._state("report", update, metrics)

"""Builds the roles of a front: the classes that every runtime runs, with collaborators from afar.

A role's own modules are imported where it is built, so that a front loads only what its role needs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from relax_core.api.transport import Transport
from relax_core.roles.role import Role
from relax_core.runtimes.serve.assignment import Assignment
from relax_core.runtimes.serve.proxies import RemoteBatches, RemoteLedger, RemoteReporter, RemoteSource, StateClient

PATIENCE = 1.0
"""Seconds that a step waits for work."""

FRONTS: Mapping[str, tuple[str, ...]] = {
    "rollout": ("rollout",),
    "reward": ("reward",),
    "advantages": ("advantages",),
    "actor": ("actor_fwd", "actor"),
}
"""The roles of each front, in turn: those that share ranks share a front."""


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


async def build_roles(front: str, around: Surroundings) -> list[Role]:
    """The planned roles of a front, patient."""
    if front == "reward":
        return [await _reward(around)]
    builders: Mapping[str, Callable[[Surroundings], list[Role]]] = {
        "rollout": _rollout,
        "advantages": _advantages,
        "actor": _actor,
    }
    roles = builders[front](around)
    for role in roles:
        role.patience = PATIENCE / len(roles)
    return roles


def _rollout(around: Surroundings) -> list[Role]:
    from relax_core.models.prompts import PromptCodec
    from relax_core.roles.rollout import Rollout
    from relax_core.runtimes.components import sampling_parameters
    from relax_core.runtimes.serve.engine import RemoteEngine

    assignment, run = around.assignment, around.assignment.config.run
    return [
        Rollout(
            RemoteSource(around.state),
            RemoteEngine(assignment, around.state),
            around.transport,
            PromptCodec(assignment.model_source(), run.prompt.format),
            RemoteLedger(around.state),
            sampling_parameters(run.sampling),
            run.batch.samples_per_task,
            assignment.seed,
            run.prompt.max_tokens,
            run.timeouts.generation,
            run.rollout,
        )
    ]


async def _reward(around: Surroundings) -> Role:
    from relax_core.models.prompts import PromptCodec
    from relax_core.roles.reward import RewardRole
    from relax_core.runtimes.components import Builder

    assignment, config = around.assignment, around.assignment.config
    scorer = Builder(config, assignment.context(around.state.count)).scorer(config.rewards)
    await scorer.start()
    codec = PromptCodec(assignment.model_source(), config.run.prompt.format)
    ledger, reporter = RemoteLedger(around.state), RemoteReporter(around.state)
    role = RewardRole(around.transport, scorer, codec, ledger, reporter, config.run.rollout.drop_equal_rewards)
    role.patience = PATIENCE
    return role


def _advantages(around: Surroundings) -> list[Role]:
    from relax_core.roles.advantages import Advantages

    assignment = around.assignment
    context = assignment.context(around.state.count, staged=True)
    algorithm = assignment.config.algorithm.build(context)
    requirements = assignment.plan.requirements
    return [Advantages(algorithm, requirements, around.transport, assignment.config.run.batch.tasks)]


def _actor(around: Surroundings) -> list[Role]:
    from relax_core.dataflow import columns as core
    from relax_core.dataflow.staleness import Staleness
    from relax_core.roles.actor import Actor
    from relax_core.roles.forward import ForwardRole
    from relax_core.runtimes.serve.remote_ranks import RemoteRanks

    assignment, state, run = around.assignment, around.state, around.assignment.config.run
    ranks = RemoteRanks(assignment)
    batches = RemoteBatches(state)

    def version() -> int:
        published: int = state("version")
        return published

    async def publish() -> None:
        state("published", *await ranks.publish())

    def report(update: int, metrics: dict[str, float]) -> None:
        state("report", update, metrics)

    actor = Actor(
        assignment.plan,
        run.batch,
        ranks,
        around.transport,
        batches,
        version,
        publish,
        report,
        Staleness(run.max_staleness, run.on_stale),
        assignment.seed,
    )
    actor.restore(batches.counters)
    if assignment.plan.role("actor_fwd") is None:
        return [actor]
    forward = ForwardRole("actor_fwd", core.OLD_LOGPROBS, ranks, version, around.transport, run.batch, True)
    return [forward, actor]

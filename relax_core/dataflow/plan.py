"""The plan of a stage: which roles exist, what each reads and writes, and what a ratio divides. Pure and torch-free."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from relax_core.api.algorithm import Requirements
from relax_core.api.columns import ColumnSpec
from relax_core.api.errors import ConfigError
from relax_core.api.transport import Consumer
from relax_core.config.base import AlgorithmConfig, Config
from relax_core.config.run import BatchConfig, RunSections, SamplingConfig
from relax_core.dataflow import columns as core

HOST = "host"
"""Device group of roles that need none."""

FROZEN: Mapping[str, ColumnSpec] = {"reference": core.REF_LOGPROBS, "teacher": core.TEACHER_LOGPROBS}
"""Roles whose model is never trained, and the column that each writes."""


class OldPolicy(Enum):
    """Where the proximal policy of a ratio comes from; the value is what ``relax plan`` prints."""

    NONE = "none: no ratio"
    CURRENT = "current, detached: one update per batch, so nothing is computed twice"
    TRAINER = "trainer at the start of the batch"
    ROLLOUT = "rollout engine"


@dataclass(frozen=True)
class RolePlan:
    """One role of a stage.

    Args:
        name: The role.
        reads: Columns that must be present before a group is ready for it.
        writes: Columns it adds.
        device_group: Roles of one device group hold it in turn; :data:`HOST` needs no device.
    """

    name: str
    reads: frozenset[str] = frozenset()
    writes: tuple[str, ...] = ()
    device_group: str = HOST


@dataclass(frozen=True)
class Plan:
    """What one stage does; everything else is derived from it.

    Args:
        columns: Types of every column of the stage.
        roles: In the order data flows.
        old: Proximal policy.
        requirements: What the algorithm asked for.
        updates_per_batch: Optimizer steps between two publications, all epochs together.
    """

    columns: tuple[ColumnSpec, ...]
    roles: tuple[RolePlan, ...]
    old: OldPolicy
    requirements: Requirements
    updates_per_batch: int

    def role(self, name: str) -> RolePlan | None:
        """The role of that name, if planned."""
        return next((role for role in self.roles if role.name == name), None)

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """The roles that take rows from the transport."""
        light = frozenset({"loss_mask", "scored", "segments", "reward", "stop_reason"})
        return tuple(Consumer(role.name, role.reads, role.reads & light) for role in self.roles if role.reads)

    def describe(self) -> str:
        """The plan for people, one fact a line."""
        lines = [f"{role.name:<12} {_flow(role)}  [{role.device_group}]" for role in self.roles]
        if self.old is not OldPolicy.NONE:
            lines.append(f"ratio = current / old@version; correction = {_correction(self)}")
            lines.append(f"old = {self.old.value}")
        lines.append(f"updates per batch: {self.updates_per_batch}; loss per {self.requirements.unit}")
        lines.append(f"streaming: {_streaming(self)}")
        return "\n".join(lines)


def _flow(role: RolePlan) -> str:
    reads = ", ".join(sorted(role.reads)) or "-"
    return f"{reads}  ->  {', '.join(role.writes) or '-'}"


def _correction(plan: Plan) -> str:
    if plan.old is OldPolicy.ROLLOUT:
        return "none: old is the rollout policy"
    return f"old / rollout: {plan.requirements.correction}"


def _streaming(plan: Plan) -> str:
    if plan.requirements.scope == "batch":
        return "no, because the algorithm prepares over the whole batch"
    if plan.requirements.supervised:
        return "by row; roles take turns, a batch at a time"
    rollout, actor = plan.role("rollout"), plan.role("actor")
    assert rollout is not None and actor is not None
    if rollout.device_group == actor.device_group:
        return "by group; colocated roles take turns, a batch at a time"
    return "by group; gradients when a batch is complete, or with batch.streaming as groups come"


def derive_plan(
    algorithm: Config,
    batch: BatchConfig,
    sampling: SamplingConfig,
    rewards: bool = True,
    max_staleness: int = 0,
    media: bool = False,
) -> Plan:
    """Derives the roles of a stage.

    Args:
        algorithm: Configuration of the algorithm.
        batch: Sizes.
        sampling: How the rollout draws tokens.
        rewards: Whether the run has rewards; an algorithm that learns from them is planned with them in any case.
        max_staleness: Versions that a token may be older than the trainer.
        media: Whether tasks may have images, sound or video.

    Raises:
        ConfigError: The algorithm needs a column that nothing can write.
    """
    assert isinstance(algorithm, AlgorithmConfig)
    requirements = algorithm.requirements()
    updates = batch.updates_per_batch * batch.epochs_per_batch
    old = _old_policy(requirements, batch, updates, max_staleness)
    _check_old(requirements, batch)
    support = () if requirements.supervised or not _truncated(sampling) else ("support_counts", "support_ids")
    carried = (*support, core.MEDIA.name) if media else support
    if requirements.supervised:
        roles = _supervised_roles(requirements, carried)
    else:
        roles = _rollout_roles(requirements, old, carried, rewards or requirements.rewards)
    columns = {spec.name: spec for spec in (*core.CORE_COLUMNS, *requirements.produces)}
    _check_sources(roles, columns)
    used = {name for role in roles for name in (*role.writes, *role.reads)}
    return Plan(tuple(columns[name] for name in columns if name in used), tuple(roles), old, requirements, updates)


def warmup_batch(run: RunSections) -> BatchConfig:
    """The warm-up's batches: one update each, one row per task."""
    return BatchConfig(
        tasks=run.warmup.tasks,
        samples_per_task=1,
        tokens_per_micro_batch=run.batch.tokens_per_micro_batch,
        max_dropped_in_row=run.batch.max_dropped_in_row,
    )


def _check_old(requirements: Requirements, batch: BatchConfig) -> None:
    if batch.old != "rollout":
        return
    if "old_logprobs" not in requirements.needs:
        raise ConfigError("batch.old: 'rollout' would be ignored, since the algorithm has no ratio; leave it out")
    if requirements.correction != "none":
        raise ConfigError(
            f"batch.old: 'rollout' leaves nothing to correct, but the algorithm corrects old / rollout by "
            f"{requirements.correction}; use 'trainer', or no correction"
        )


def _truncated(sampling: SamplingConfig) -> bool:
    return sampling.top_p < 1 or sampling.top_k > 0


def _old_policy(requirements: Requirements, batch: BatchConfig, updates: int, max_staleness: int) -> OldPolicy:
    if "old_logprobs" not in requirements.needs:
        return OldPolicy.NONE
    # Stale tokens need a ratio to the policy that drew them, or a correction: the trainer's own ratio knows of no lag.
    uncorrected = requirements.correction == "none" and "old_logprobs" not in requirements.prepare_reads
    if batch.old == "rollout" or (batch.old == "auto" and max_staleness and uncorrected):
        return OldPolicy.ROLLOUT
    if updates == 1 and "old_logprobs" not in requirements.prepare_reads:
        return OldPolicy.CURRENT
    return OldPolicy.TRAINER


def _supervised_roles(requirements: Requirements, carried: Sequence[str]) -> list[RolePlan]:
    rows = frozenset({"tokens", "loss_mask", *carried})
    labelled = RolePlan("supervised", writes=("tokens", "loss_mask", *carried))
    if "preferred" in requirements.needs:
        labelled = RolePlan("preference", writes=(*labelled.writes, "preferred"))
    actor = RolePlan("actor", rows | requirements.needs, device_group="model")
    return [RolePlan("source"), labelled, *_frozen_roles(requirements, rows), actor]


def _frozen_roles(requirements: Requirements, reads: frozenset[str]) -> list[RolePlan]:
    """Models that are never trained, and say what they think of rows."""
    return [
        RolePlan(name, reads, (column.name,), "model")
        for name, column in FROZEN.items()
        if column.name in requirements.needs
    ]


def _rollout_roles(requirements: Requirements, old: OldPolicy, carried: Sequence[str], rewards: bool) -> list[RolePlan]:
    model_reads = frozenset({"tokens", "loss_mask", *carried})
    needs = set(requirements.needs)
    if old is not OldPolicy.TRAINER:
        needs.discard("old_logprobs")
    roles = [
        RolePlan("source"),
        RolePlan(
            "rollout",
            writes=("tokens", "loss_mask", "rollout_logprobs", "segments", "stop_reason", "task", *carried),
            device_group="model",
        ),
    ]
    judged: tuple[str, ...] = ()
    if rewards:
        judged = ("reward", "scored", "reward_parts")
        roles.append(RolePlan("reward", frozenset({"tokens", "loss_mask", "stop_reason", "task"}), judged))
    roles += _frozen_roles(requirements, model_reads)
    if "old_logprobs" in needs:
        roles.append(RolePlan("actor_fwd", model_reads, ("old_logprobs",), "model"))
    produced = tuple(spec.name for spec in requirements.produces)
    if produced:
        reads = frozenset({"reward", "scored"}) | requirements.prepare_reads
        roles.append(RolePlan("advantages", reads, produced))
    described = {*judged, "segments", "rollout_logprobs", "stop_reason", "task"}
    actor_reads = model_reads | needs | {*produced, *described}
    roles.append(RolePlan("actor", frozenset(actor_reads), device_group="model"))
    return roles


def _check_sources(roles: Sequence[RolePlan], columns: dict[str, ColumnSpec]) -> None:
    written = {name for role in roles for name in role.writes}
    for role in roles:
        for name in sorted(role.reads - written):
            known = ", ".join(sorted(written))
            raise ConfigError(
                f"algorithm: {role.name} needs the column {name!r}, which no role writes; written: {known}"
            )
        for name in role.writes:
            if name not in columns:
                raise ConfigError(f"algorithm: the column {name!r} has no declared type")

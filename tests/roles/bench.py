"""An actor on a real trainer and transport; only the version it has published is played."""

from dataclasses import dataclass, field
from typing import Any

from relax_algos.grpo import GRPO, GRPOConfig

from relax_core.checkpoint.batches import BatchRecord
from relax_core.config.run import BatchConfig
from relax_core.dataflow.ledger import Ledger
from relax_core.dataflow.plan import Plan
from relax_core.dataflow.staleness import Staleness
from relax_core.roles.actor import Actor
from relax_core.roles.advantages import Advantages
from relax_core.roles.batches import BatchLog
from relax_core.roles.objective import Objective
from relax_core.roles.ranks import Ranks
from relax_core.roles.recorder import BatchRecorder
from relax_core.roles.role import Progress
from relax_core.roles.seen_logprobs import SeenLogprobs
from relax_core.roles.streaming import StreamingActor
from relax_core.roles.training import LocalRanks, TrainingRank
from relax_core.trainers.torch.trainer import TorchTrainer
from relax_core.transports.memory.transport import MemoryTransport
from tests.roles.conftest import append_group, opened, reward_columns

BATCH = BatchConfig(tasks=2, samples_per_task=2)


@dataclass
class Bench:
    """An actor with everything around it in reach.

    Args:
        trainer: A trainer of this process, or ranks of the test's own.
        streaming: Whether it is one that accumulates group by group.
        kept: Where one of ``every`` batches is recorded, if anywhere.
        advances: Whether a publication is a new version.
    """

    plan: Plan
    trainer: TorchTrainer | Ranks
    ledger: Ledger
    staleness: Staleness = field(default_factory=Staleness)
    version: int = 0
    publications: int = 0
    batch: BatchConfig = BATCH
    streaming: bool = False
    kept: list[BatchRecord] | None = None
    every: int = 1
    advances: bool = False
    reports: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ended = False
        self.transport: MemoryTransport = opened(self.plan)
        self.algorithm = GRPO(GRPOConfig(), None)
        self.advantages = Advantages(self.algorithm, self.plan.requirements, self.transport, self.batch.tasks)
        recorder, seen = None, None
        if self.kept is not None:
            recorder = BatchRecorder(self.kept.append, self.every, 1.0)
            seen = SeenLogprobs(self.every, self.plan.updates_per_batch)
        self.ranks = self.trainer if isinstance(self.trainer, Ranks) else self._local(self.trainer, seen)
        arguments: tuple[Any, ...] = (
            self.plan,
            self.batch,
            self.ranks,
            self.transport,
            BatchLog(self.ledger),
            lambda: self.version,
            self._publish,
            lambda update, metrics: self.reports.append((update, metrics)),
            self.staleness,
            0,
            recorder,
        )
        self.actor = StreamingActor(*arguments, grows=self.grows) if self.streaming else Actor(*arguments)

    def _local(self, trainer: TorchTrainer, seen: SeenLogprobs | None) -> LocalRanks:
        objective = Objective(self.algorithm, self.plan.old)
        return LocalRanks(TrainingRank(self.plan, trainer, self.transport, objective, 1.0, seen=seen))

    def grows(self, groups: int) -> bool:
        """Whether more groups may come than the actor has."""
        return not self.ended or len(self.ledger.pending) > groups

    def end(self) -> None:
        """No further group will be issued."""
        self.ended = True
        self.transport.finish()

    async def _publish(self) -> None:
        self.publications += 1
        self.version += self.advances

    async def add(
        self,
        group: int,
        version: int = 0,
        rewards: tuple[float | None, ...] = (0.0, 1.0),
        answers: tuple[int, ...] = (),
    ) -> None:
        """A group that is ready for the actor."""
        ids = append_group(self.transport, self.ledger, group, answers or (2, 3), version)
        values = [reward or 0.0 for reward in rewards]
        scored = [reward is not None for reward in rewards]
        self.transport.write(ids, reward_columns(values, scored))
        await self.advantages.step()

    async def train(self) -> None:
        """Steps as long as the actor finds something."""
        while await self.actor.step() is Progress.WORKED:
            pass

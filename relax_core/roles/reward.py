"""The reward role decodes trajectories and writes what they are worth."""

import asyncio
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from relax_core.api.columns import Column, Table
from relax_core.api.errors import EndOfStream, LeaseExpired
from relax_core.api.rows import Sample, StopReason
from relax_core.api.transport import Lease, Transport
from relax_core.dataflow import columns as core
from relax_core.roles.collaborators import Prompts, Reporter, TaskLedger
from relax_core.roles.lease import Renewals
from relax_core.roles.role import BackgroundRole, Progress
from relax_core.roles.scoring import GroupScores, Scorer
from relax_core.roles.tasks import unpack_task

logger = logging.getLogger(__name__)
LEASE, SHARED_LEASE = 600.0, 30.0
"""Seconds; a living holder renews. Where others do the same work, those of a dead one must come back by themselves."""

GROUPS_TOLD = 64
"""Scored groups after which people hear of them, although others are still being scored."""


@dataclass
class Scoring:
    """A group until it is scored.

    Args:
        lease: Holds the group.
        samples: What the rewards see.
        open: Renews the lease and times the scoring.
    """

    lease: Lease
    samples: Sequence[Sample]
    open: ExitStack = field(default_factory=ExitStack)

    @property
    def group(self) -> int:
        """Its id."""
        return int(self.lease.table.groups[0])


class RewardRole(BackgroundRole[Scoring]):
    """Scores every group that is complete, all at the same time: a slow one keeps none waiting that came later.

    Args:
        transport: Rows in, ``reward`` and ``scored`` out.
        scorer: The run's rewards.
        codec: Decodes.
        ledger: Told of dropped groups.
        hub: Receives the means of the rewards' parts and some samples.
        drop_equal_rewards: Whether groups whose rewards are all equal are dropped.
    """

    name = "reward"

    def __init__(
        self,
        transport: Transport,
        scorer: Scorer,
        codec: Prompts,
        ledger: TaskLedger,
        hub: Reporter,
        drop_equal_rewards: bool = False,
    ) -> None:
        super().__init__()
        self._transport = transport
        self._scorer = scorer
        self._codec = codec
        self._ledger = ledger
        self._hub = hub
        self._drop_equal_rewards = drop_equal_rewards
        self._renewals = Renewals(transport)
        self._untold: list[tuple[Scoring, GroupScores]] = []
        self._ended = False

    async def step(self) -> Progress:
        """Writes the groups that are scored, and begins with all that are ready now."""
        scored = self._take_back()
        worked = self._begin() or scored
        if self._untold and (not self._running or len(self._untold) >= GROUPS_TOLD):
            self._tell()
        if worked:
            return Progress.WORKED
        if self._ended:
            return Progress.DONE
        return Progress.BUSY if self._running else Progress.IDLE

    async def close(self) -> None:
        """Gives up the scores that are not there yet."""
        await super().close()
        for scoring in self._running.values():
            scoring.open.close()

    def _begin(self) -> bool:
        """One lease per group: a slow group does not keep the rows of others that are trained already."""
        if not self._running:
            self.timeline.waiting(self.name)
        lease = self._take(0.0 if self._running else self.patience)
        began = lease is not None
        if began:
            self.timeline.working(self.name)
        while lease is not None:
            table = self._transport.fetch(lease, ["tokens", "loss_mask", "stop_reason", "task"])
            scoring = Scoring(lease, [self._sample(table, row) for row in range(len(table))])
            scoring.open.enter_context(self._renewals.held(lease))
            scoring.open.enter_context(self.timeline.span(self.name, "score"))
            self._running[asyncio.create_task(self._scorer.score(scoring.samples))] = scoring
            lease = self._take(0.0)
        return began

    def _take(self, patience: float) -> Lease | None:
        try:
            seconds = SHARED_LEASE if self.shared else LEASE
            return self._transport.take(self.name, timeout=patience, seconds=seconds)
        except EndOfStream:
            self._ended = True
            return None

    def _take_back(self) -> bool:
        """Writes everything that has been scored."""
        ended = [task for task in self._running if task.done()]
        for task in ended:
            scoring, result = self._running[task], task.result()
            with scoring.open:
                self._settle(scoring, result)
            del self._running[task]
        return bool(ended)

    def _settle(self, scoring: Scoring, result: GroupScores) -> None:
        try:
            if self.shared:
                self._transport.renew(scoring.lease, SHARED_LEASE)
            self._write(scoring, result)
            self._transport.ack(scoring.lease)
        except LeaseExpired:
            if not self.shared:
                raise
            # This process stood still, and another one has the group, or had it: its scores are as good.
            self._hub.count("reward/lease_lost")
        else:
            self._untold.append((scoring, result))

    def _sample(self, table: Table, row: int) -> Sample:
        tokens = table["tokens"][row][table["loss_mask"][row].astype(bool)].tolist()
        reason = StopReason(int(table["stop_reason"][row]))
        return Sample(unpack_task(table["task"][row]), self._codec.decode(tokens), tokens, reason)

    def _write(self, scoring: Scoring, result: GroupScores) -> None:
        group = scoring.group
        if result.error is not None:
            logger.warning("group %d dropped: %s", group, result.error)
            self._drop(group, "reward_error")
            return
        scored = [score.value is not None for score in result.scores]
        if not all(scored):
            self._hub.count("reward/abstained", scored.count(False))
        if not any(scored):
            self._drop(group, "reward_abstained")
            return
        values = [0.0 if score.value is None else score.value for score in result.scores]
        if self._drop_equal_rewards and len(set(values)) == 1 and all(scored):
            self._drop(group, "equal_rewards", Counter(str(value) for value in values))
            return
        parts = [np.frombuffer(json.dumps(dict(score.parts)).encode(), np.uint8) for score in result.scores]
        columns = [Column.of(core.REWARD, values), Column.of(core.SCORED, scored), Column.of(core.REWARD_PARTS, parts)]
        self._transport.write(scoring.lease.table.ids, columns, repeat=self.shared or scoring.lease.attempt > 1)

    def _drop(self, group: int, reason: str, rewards: Mapping[str, int] | None = None) -> None:
        # In this order: killed in between, the role gets the group again.
        self._ledger.dropped(group, reason, rewards)
        self._transport.drop([group])

    def _tell(self) -> None:
        """Means and a sample of what was scored since the last time, in the order of the tasks and not of the clock."""
        told, self._untold = sorted(self._untold, key=lambda each: each[0].group), []
        step = self._ledger.counts()["issued"]
        parts: dict[str, list[float]] = defaultdict(list)
        for score in [score for _, result in told for score in result.scores]:
            for name, value in score.parts.items():
                parts[f"reward/{name}"].append(value)
        if parts:
            means = {name: float(np.mean(values)) for name, values in parts.items()}
            self._hub.write("rollout", step, means)
        scoring, result = told[0]
        if result.scores:
            sample, score = scoring.samples[0], result.scores[0]
            text = (
                f"{sample.task.prompt!r} -> {sample.text!r} ({sample.stop_reason.name.lower()}), reward {score.value}"
            )
            self._hub.text("rollout", step, "sample", text)

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
from relax_core.api.errors import EndOfStream
from relax_core.api.rows import Sample, StopReason
from relax_core.api.transport import Lease, Transport
from relax_core.dataflow import columns as core
from relax_core.models.prompts import PromptCodec
from relax_core.roles.collaborators import Reporter, TaskLedger
from relax_core.roles.lease import held
from relax_core.roles.role import Progress, Role
from relax_core.roles.scoring import GroupScores, Scorer
from relax_core.roles.tasks import unpack_task

logger = logging.getLogger(__name__)
MOST_GROUPS = 1024


@dataclass
class Scoring:
    """The groups of one lease, until all of them are scored.

    Args:
        lease: Holds them.
        table: Their rows.
        samples: What the rewards see, by group.
        results: What they said, by group.
        open: Renews the lease and times the scoring.
    """

    lease: Lease
    table: Table
    samples: Mapping[int, Sequence[Sample]]
    results: dict[int, GroupScores] = field(default_factory=dict)
    open: ExitStack = field(default_factory=ExitStack)


class RewardRole(Role):
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
        codec: PromptCodec,
        ledger: TaskLedger,
        hub: Reporter,
        drop_equal_rewards: bool = False,
    ) -> None:
        self._transport = transport
        self._scorer = scorer
        self._codec = codec
        self._ledger = ledger
        self._hub = hub
        self._drop_equal_rewards = drop_equal_rewards
        self._running: dict[asyncio.Task[GroupScores], tuple[Scoring, int]] = {}
        self._ended = False

    async def step(self) -> Progress:
        """Writes the groups that are scored, and begins with all that are ready now."""
        if self._ended:
            return Progress.DONE
        worked = self._take_back()
        worked |= self._begin()
        if worked:
            return Progress.WORKED
        return Progress.BUSY if self._running else Progress.IDLE

    async def settled(self) -> None:
        """Returns when a group has been scored."""
        if self._running:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Gives up the scores that are not there yet."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for scoring, _ in self._running.values():
            scoring.open.close()

    def _begin(self) -> bool:
        patience = 0.0 if self._running else self.patience
        try:
            lease = self._transport.take(self.name, 1, MOST_GROUPS, patience)
        except EndOfStream:
            self._ended = True
            return True
        if lease is None:
            return False
        table = self._transport.fetch(lease, ["tokens", "loss_mask", "stop_reason", "task"])
        samples = {
            group: [self._sample(table, int(row)) for row in np.flatnonzero(table.groups == group)]
            for group in dict.fromkeys(table.groups.tolist())
        }
        scoring = Scoring(lease, table, samples)
        scoring.open.enter_context(held(self._transport, lease))
        scoring.open.enter_context(self.timeline.span(self.name, "score", groups=len(samples)))
        for group, of_group in samples.items():
            self._running[asyncio.create_task(self._scorer.score(of_group))] = (scoring, group)
        self._settle(scoring)
        return True

    def _take_back(self) -> bool:
        ended = [task for task in self._running if task.done()]
        for task in ended:
            scoring, group = self._running[task]
            scoring.results[group] = task.result()
            self._write(scoring, group)
            self._settle(scoring)
            del self._running[task]
        return bool(ended)

    def _settle(self, scoring: Scoring) -> None:
        """Gives the lease back when all of its groups are written, or have been dropped by somebody else."""
        if len(scoring.results) == len(scoring.samples):
            scoring.open.close()
            self._transport.ack(scoring.lease)
            self._report(scoring)

    def _sample(self, table: Table, row: int) -> Sample:
        tokens = table["tokens"][row][table["loss_mask"][row].astype(bool)].tolist()
        reason = StopReason(int(table["stop_reason"][row]))
        return Sample(unpack_task(table["task"][row]), self._codec.decode(tokens), tokens, reason)

    def _write(self, scoring: Scoring, group: int) -> None:
        table, result = scoring.table, scoring.results[group]
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
        self._transport.write(table.ids[table.groups == group], columns, repeat=scoring.lease.attempt > 1)

    def _drop(self, group: int, reason: str, rewards: Mapping[str, int] | None = None) -> None:
        # In this order: killed in between, the role gets the group again.
        self._ledger.dropped(group, reason, rewards)
        self._transport.drop([group])

    def _report(self, scoring: Scoring) -> None:
        step = self._ledger.counts()["issued"]
        parts: dict[str, list[float]] = defaultdict(list)
        for group in scoring.samples:
            for score in scoring.results[group].scores:
                for name, value in score.parts.items():
                    parts[f"reward/{name}"].append(value)
        if parts:
            means = {name: float(np.mean(values)) for name, values in parts.items()}
            self._hub.write("rollout", step, means)
        first = next(iter(scoring.samples), None)
        if first is not None and scoring.results[first].scores:
            sample, score = scoring.samples[first][0], scoring.results[first].scores[0]
            text = (
                f"{sample.task.prompt!r} -> {sample.text!r} ({sample.stop_reason.name.lower()}), reward {score.value}"
            )
            self._hub.text("rollout", step, "sample", text)

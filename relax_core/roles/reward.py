"""The reward role decodes trajectories and writes what they are worth."""

import asyncio
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from relax_core.api.columns import Column, Table
from relax_core.api.errors import EndOfStream
from relax_core.api.rows import Sample, Score, StopReason
from relax_core.api.transport import Transport
from relax_core.dataflow import columns as core
from relax_core.models.prompts import PromptCodec
from relax_core.roles.collaborators import Reporter, TaskLedger
from relax_core.roles.lease import held
from relax_core.roles.role import Progress, Role
from relax_core.roles.scoring import GroupScores, Scorer
from relax_core.roles.tasks import unpack_task

logger = logging.getLogger(__name__)
MOST_GROUPS = 1024


class RewardRole(Role):
    """Scores every group that is complete.

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

    async def step(self) -> Progress:
        """Scores all groups that are ready now, concurrently."""
        try:
            lease = self._transport.take(self.name, 1, MOST_GROUPS, self.patience)
        except EndOfStream:
            return Progress.DONE
        if lease is None:
            return Progress.IDLE
        table = self._transport.fetch(lease, ["tokens", "loss_mask", "stop_reason", "task"])
        groups = [np.flatnonzero(table.groups == group) for group in dict.fromkeys(table.groups.tolist())]
        samples = [[self._sample(table, int(row)) for row in rows] for rows in groups]
        with held(self._transport, lease), self.timeline.span(self.name, "score", groups=len(groups)):
            results = await asyncio.gather(*(self._scorer.score(group) for group in samples))
        for rows, group_samples, result in zip(groups, samples, results, strict=True):
            self._write(table, rows, group_samples, result, repeat=lease.attempt > 1)
        self._transport.ack(lease)
        self._report([score for result in results for score in result.scores], samples, results)
        return Progress.WORKED

    def _sample(self, table: Table, row: int) -> Sample:
        tokens = table["tokens"][row][table["loss_mask"][row].astype(bool)].tolist()
        reason = StopReason(int(table["stop_reason"][row]))
        return Sample(unpack_task(table["task"][row]), self._codec.decode(tokens), tokens, reason)

    def _write(
        self, table: Table, rows: np.ndarray, samples: Sequence[Sample], result: GroupScores, repeat: bool
    ) -> None:
        group = int(table.groups[rows[0]])
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
        self._transport.write(table.ids[rows], columns, repeat=repeat)

    def _drop(self, group: int, reason: str, rewards: Mapping[str, int] | None = None) -> None:
        # In this order: killed in between, the role gets the group again.
        self._ledger.dropped(group, reason, rewards)
        self._transport.drop([group])

    def _report(
        self, scores: Sequence[Score], samples: Sequence[Sequence[Sample]], results: Sequence[GroupScores]
    ) -> None:
        step = self._ledger.counts()["issued"]
        parts: dict[str, list[float]] = defaultdict(list)
        for score in scores:
            for name, value in score.parts.items():
                parts[f"reward/{name}"].append(value)
        if parts:
            means = {name: float(np.mean(values)) for name, values in parts.items()}
            self._hub.write("rollout", step, means)
        if results and results[0].scores:
            sample, score = samples[0][0], results[0].scores[0]
            text = (
                f"{sample.task.prompt!r} -> {sample.text!r} ({sample.stop_reason.name.lower()}), reward {score.value}"
            )
            self._hub.text("rollout", step, "sample", text)

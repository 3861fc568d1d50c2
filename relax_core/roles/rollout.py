"""The rollout role generates a group of trajectories for each task that may start."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from relax_core.api.columns import Column
from relax_core.api.engine import Engine, SamplingParameters
from relax_core.api.errors import PromptTooLong, RelaxError
from relax_core.api.media import MediaError
from relax_core.api.transport import Transport
from relax_core.config.run import RolloutConfig
from relax_core.dataflow import columns as core
from relax_core.dataflow.rows import rows_of
from relax_core.dataflow.seeds import derive_seed
from relax_core.media.blobs import put_media
from relax_core.metrics.generated import Generated
from relax_core.roles.collaborators import Prompts, TaskLedger, TaskSource
from relax_core.roles.group import GroupGeneration
from relax_core.roles.prompts import drop_reason, encode_prompt
from relax_core.roles.role import BackgroundRole, Progress
from relax_core.roles.source import IssuedTask
from relax_core.roles.tasks import pack_task

DEFAULTS = RolloutConfig()


class Rollout(BackgroundRole[GroupGeneration]):
    """Keeps every group running that the source may issue, and appends each when it is complete.

    With a surplus, more groups run than the next batches take. When these are complete, what still runs is stopped and
    parked; once there is room again it goes on, with whatever weights the engine has then.

    Args:
        source: Tasks.
        engine: Generates.
        transport: Receives rows.
        prompts: Encodes prompts, and their media.
        ledger: Told what was generated or dropped.
        sampling: How tokens are drawn.
        samples_per_task: Trajectories per group.
        seed: Base seed of all trajectories.
        max_prompt_tokens: Longer prompts are dropped.
        timeout: Seconds for one group, from its start or from where it goes on.
        settings: Surplus, and what of a row is trained on.
    """

    name = "rollout"

    def __init__(
        self,
        source: TaskSource,
        engine: Engine,
        transport: Transport,
        prompts: Prompts,
        ledger: TaskLedger,
        sampling: SamplingParameters,
        samples_per_task: int,
        seed: int,
        max_prompt_tokens: int | None,
        timeout: float,
        settings: RolloutConfig = DEFAULTS,
    ) -> None:
        super().__init__()
        self._source = source
        self._engine = engine
        self._transport = transport
        self._prompts = prompts
        self._ledger = ledger
        self._sampling = sampling
        self._samples_per_task = samples_per_task
        self._seed = seed
        self._max_prompt_tokens = max_prompt_tokens
        self._timeout = timeout
        self._settings = settings
        self._parked: list[GroupGeneration] = []
        self._restored: dict[str, Any] = {}
        self._started = self._finished = False
        self._busy_since, self._seconds = 0.0, 0.0
        self.generated_tokens = 0
        self.generated_rows = 0
        self.stopped_groups = 0

    @property
    def seconds(self) -> float:
        """Wall seconds in which something was being generated."""
        return self._seconds + (time.monotonic() - self._busy_since if self._running else 0.0)

    @property
    def generating(self) -> bool:
        """Whether something is being generated now."""
        return bool(self._running)

    @property
    def generated(self) -> Generated:
        """All of it so far."""
        groups = [*self._parked, *self._running.values()]
        tokens = self.generated_tokens + sum(group.tokens for group in groups)
        rows = self.generated_rows + sum(len(group.generations) for group in groups)
        return Generated(self.generated_tokens, self.seconds, self.stopped_groups, rows, tokens)

    async def step(self) -> Progress:
        """Appends the groups that are complete, and starts those that may run, or stops those that are surplus."""
        if self._finished:
            return Progress.DONE
        worked = self._take_back()
        if self._settings.surplus and self._source.complete:
            worked |= await self._stop_surplus()
        else:
            worked |= self._start()
        if self._started and not self._running and not self._parked and self._source.exhausted:
            self._transport.finish()
            self._finished = worked = True
        if worked:
            return Progress.WORKED
        return Progress.BUSY if self._running else Progress.IDLE

    async def close(self) -> None:
        """Gives up all groups that run; :meth:`state` still tells what they have."""
        await super().close()
        self._seconds = self.seconds
        self._parked += self._running.values()
        self._running.clear()

    def _start(self) -> bool:
        """Runs what is parked, what somebody before did not finish, and what the source issues."""
        parked, self._parked = self._parked, []
        for group in parked:
            self._run(group)
        patience = 0.0 if self._running else self.patience
        if not self._running:
            self.timeline.waiting(self.name)
        issued = [] if self._started else self._source.unfinished()
        self._started = True
        issued = [*issued, *self._source.admitted(patience)]
        for each in issued:
            self._begin(each)
        if issued and self._prompts.carries_media:
            self._prompts.prefetch(self._source.upcoming(len(issued)), self._max_prompt_tokens)
        if self._running:
            self.timeline.working(self.name)
        return bool(parked or issued)

    def _begin(self, issued: IssuedTask) -> None:
        seeds = tuple(
            derive_seed(self._seed, "trajectory", issued.epoch, issued.task.index, sample)
            for sample in range(self._samples_per_task)
        )
        group = GroupGeneration(issued, None, seeds)
        state = self._restored.pop(str(issued.group), None)
        if state is not None:
            group.restore(state)
        self._run(group)

    def _run(self, group: GroupGeneration) -> None:
        if not self._running:
            self._busy_since = time.monotonic()
        self._running[asyncio.create_task(self._generate(group))] = group

    async def _generate(self, group: GroupGeneration) -> None:
        if group.prompt is None:
            group.prompt = await encode_prompt(self._prompts, group.issued.task, self._max_prompt_tokens)
        before = group.tokens
        with self.timeline.span(self.name, "generate", group=group.issued.group) as facts:
            await group.generate(self._engine, self._sampling, self._timeout)
            facts["tokens"] = group.tokens - before
            if versions := [version for part in group.generations for _, version in part.segments]:
                facts["version"] = max(versions)

    def _take_back(self) -> bool:
        """Everything that has ended, in the order in which it was issued."""
        ended = [task for task in self._running if task.done()]
        for task in ended:
            group = self._running.pop(task)
            if not self._running:
                self._seconds += time.monotonic() - self._busy_since
            try:
                task.result()
            except (PromptTooLong, MediaError) as error:
                self._ledger.dropped(group.issued.group, drop_reason(error))
                self._source.finished(group.issued.group)
            else:
                self._settle(group)
        return bool(ended)

    def _settle(self, group: GroupGeneration) -> None:
        stopped, group.stopping = group.stopping, False
        if group.finished:
            self._append(group)
        elif stopped:
            self._parked.append(group)
        else:
            reason = next(part.stop_reason for part in group.generations if part.key in group.keys).name.lower()
            raise RelaxError(f"rollout: task {group.issued.task.index}: the engine returned stop reason {reason!r}")

    async def _stop_surplus(self) -> bool:
        limit = self._settings.protect_after
        surplus = [group for group in self._running.values() if not group.stopping and group.stops < limit]
        for group in surplus:
            group.stopping = True
            group.stops += 1
        self.stopped_groups += len(surplus)
        if surplus:
            await self._engine.abort([key for group in surplus for key in group.keys])
        return bool(surplus)

    def _append(self, group: GroupGeneration) -> None:
        issued, generations, prompt = group.issued, group.generations, group.prompt
        assert prompt is not None
        rows = rows_of(prompt.token_ids, generations, self._settings.mask_older_tokens)
        columns = [*rows, Column.of(core.TASK, [pack_task(issued.task)])]
        if self._prompts.carries_media:
            columns.append(put_media(self._transport, issued.group, prompt.media))
        versions = sorted({version for generation in generations for _, version in generation.segments})
        # Told first: once the rows are there, others go on with the group, even if this role is killed.
        self._ledger.generated(issued.group, len(generations), group.tokens, versions)
        oldest = min(versions, default=None)
        self._transport.append(issued.group, columns, version=oldest, close=True, repeat=issued.attempt > 1)
        self._source.finished(issued.group)
        self.generated_tokens += group.tokens
        self.generated_rows += len(generations)

    def state(self) -> dict[str, Any]:
        """What unfinished groups have, as JSON values: by group, those that have anything."""
        groups = [*self._parked, *self._running.values()]
        begun = {str(group.issued.group): group.state() for group in groups if group.generations}
        return {**self._restored, **begun}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Unfinished groups go on from what they had when the state was taken."""
        self._restored = dict(state)

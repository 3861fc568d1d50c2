"""The rollout role generates a group of trajectories for each task that may start."""

import asyncio
import time
from collections.abc import Sequence

from relax_core.api.columns import Column
from relax_core.api.engine import Engine, GenerateRequest, Generation, SamplingParameters
from relax_core.api.errors import DeadlineExceeded, PromptTooLong, RelaxError
from relax_core.api.rows import StopReason
from relax_core.api.transport import Transport
from relax_core.dataflow import columns as core
from relax_core.dataflow.rows import rows_of
from relax_core.dataflow.seeds import derive_seed
from relax_core.models.prompts import PromptCodec
from relax_core.roles.collaborators import TaskLedger, TaskSource
from relax_core.roles.role import Progress, Role
from relax_core.roles.source import IssuedTask
from relax_core.roles.tasks import pack_task


class Rollout(Role):
    """Generates every group the source may issue and appends each when it is complete.

    Args:
        source: Tasks.
        engine: Generates.
        transport: Receives rows.
        codec: Encodes prompts.
        ledger: Told what was generated or dropped.
        sampling: How tokens are drawn.
        samples_per_task: Trajectories per group.
        seed: Base seed of all trajectories.
        max_prompt_tokens: Longer prompts are dropped.
        timeout: Seconds for one group.
    """

    name = "rollout"

    def __init__(
        self,
        source: TaskSource,
        engine: Engine,
        transport: Transport,
        codec: PromptCodec,
        ledger: TaskLedger,
        sampling: SamplingParameters,
        samples_per_task: int,
        seed: int,
        max_prompt_tokens: int | None,
        timeout: float,
    ) -> None:
        self._source = source
        self._engine = engine
        self._transport = transport
        self._codec = codec
        self._ledger = ledger
        self._sampling = sampling
        self._samples_per_task = samples_per_task
        self._seed = seed
        self._max_prompt_tokens = max_prompt_tokens
        self._timeout = timeout
        self._started = self._finished = False
        self.generated_tokens = 0
        self.seconds = 0.0

    async def step(self) -> Progress:
        """Generates every group that admission has room for."""
        if self._finished:
            return Progress.DONE
        issued = self._source.admitted() if self._started else [*self._source.unfinished(), *self._source.admitted()]
        self._started = True
        started = time.monotonic()
        await asyncio.gather(*(self._generate_group(task) for task in issued))
        self.seconds += time.monotonic() - started
        if self._source.exhausted:
            self._transport.finish()
            self._finished = True
        return Progress.WORKED if issued else Progress.IDLE

    async def _generate_group(self, issued: IssuedTask) -> None:
        prompt = self._codec.encode_prompt(issued.task)
        if self._max_prompt_tokens is not None and len(prompt) > self._max_prompt_tokens:
            self._drop(issued)
            return
        try:
            generations = await self._generate(issued, prompt)
        except PromptTooLong:
            self._drop(issued)
        else:
            self._append(issued, prompt, generations)

    def _drop(self, issued: IssuedTask) -> None:
        self._ledger.dropped(issued.group, "prompt_too_long")
        self._source.finished(issued.group)

    async def _generate(self, issued: IssuedTask, prompt: Sequence[int]) -> list[Generation]:
        requests = [
            GenerateRequest(
                key=f"{issued.group}/{sample}",
                prompt_ids=tuple(prompt),
                sampling=self._sampling,
                seed=derive_seed(self._seed, "trajectory", issued.epoch, issued.task.index, sample),
            )
            for sample in range(self._samples_per_task)
        ]
        try:
            async with asyncio.timeout(self._timeout):
                return await asyncio.gather(*(self._engine.generate(request) for request in requests))
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"timeouts.generation: task {issued.task.index} was not generated in {self._timeout:g} s"
            ) from error

    def _append(self, issued: IssuedTask, prompt: Sequence[int], generations: Sequence[Generation]) -> None:
        for generation in generations:
            if generation.stop_reason in (StopReason.ABORT, StopReason.ERROR):
                reason = generation.stop_reason.name.lower()
                raise RelaxError(f"rollout: task {issued.task.index}: the engine returned stop reason {reason!r}")
        columns = [*rows_of(prompt, generations), Column.of(core.TASK, [pack_task(issued.task)])]
        versions = sorted({version for generation in generations for _, version in generation.segments})
        tokens = sum(len(generation.token_ids) for generation in generations)
        # Told first: once the rows are there, others go on with the group, even if this role is killed.
        self._ledger.generated(issued.group, len(generations), tokens, versions)
        oldest = min(versions, default=None)
        self._transport.append(issued.group, columns, version=oldest, close=True, repeat=issued.attempt > 1)
        self._source.finished(issued.group)
        self.generated_tokens += tokens

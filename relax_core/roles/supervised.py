"""The supervised role turns labelled tasks into training rows: no engine, no reward."""

import asyncio
from collections.abc import Sequence

from relax_core.api.columns import Column
from relax_core.api.errors import ConfigError, PromptTooLong
from relax_core.api.media import MediaError, Prompt
from relax_core.api.rows import Task
from relax_core.api.transport import Transport
from relax_core.dataflow import columns as core
from relax_core.media.blobs import put_media
from relax_core.roles.collaborators import Prompts, TaskLedger, TaskSource
from relax_core.roles.prompts import drop_reason, encode_prompt
from relax_core.roles.role import Progress, Role
from relax_core.roles.source import IssuedTask


class Supervised(Role):
    """One group per task, of one row with its label: prompt untrained, answer and end of sequence trained.

    Args:
        source: Labelled tasks.
        transport: Receives rows.
        prompts: Encodes prompts and labels.
        ledger: Told what was made.
        max_prompt_tokens: Longer prompts are dropped.
    """

    name = "supervised"

    def __init__(
        self,
        source: TaskSource,
        transport: Transport,
        prompts: Prompts,
        ledger: TaskLedger,
        max_prompt_tokens: int | None,
    ) -> None:
        self._source = source
        self._transport = transport
        self._prompts = prompts
        self._ledger = ledger
        self._max_prompt_tokens = max_prompt_tokens
        self._started = self._finished = False

    async def step(self) -> Progress:
        """Appends the rows of every task that may start, or that somebody before did not finish."""
        if self._finished:
            return Progress.DONE
        tasks = [] if self._started else self._source.unfinished()
        self._started = True
        tasks += self._source.admitted(self.patience)
        encoded = await asyncio.gather(*map(self._encoded, tasks), return_exceptions=True)
        for issued, rows in zip(tasks, encoded, strict=True):
            if isinstance(rows, PromptTooLong | MediaError):
                self._ledger.dropped(issued.group, drop_reason(rows))
            elif isinstance(rows, BaseException):
                raise rows
            else:
                self._append(issued, *rows)
            self._source.finished(issued.group)
        if tasks and self._prompts.carries_media:
            self._prompts.prefetch(self._source.upcoming(len(tasks)), self._max_prompt_tokens)
        if self._source.exhausted:
            self._transport.finish()
            self._finished = True
        return Progress.WORKED if tasks else Progress.IDLE

    async def _encoded(self, issued: IssuedTask) -> tuple[Prompt, list[list[int]]]:
        """A task's prompt and answers."""
        answers = [self._prompts.encode_answer(text) for text in self._answers(issued.task)]
        return await encode_prompt(self._prompts, issued.task, self._max_prompt_tokens), answers

    def _append(self, issued: IssuedTask, prompt: Prompt, answers: list[list[int]]) -> None:
        masks = [[False] * len(prompt.token_ids) + [True] * len(answer) for answer in answers]
        rows = [[*prompt.token_ids, *answer] for answer in answers]
        columns = [Column.of(core.TOKENS, rows), Column.of(core.LOSS_MASK, masks), *self._marks()]
        if self._prompts.carries_media:
            columns.append(put_media(self._transport, issued.group, prompt.media))
        self._ledger.generated(issued.group, len(rows), sum(map(len, answers)), [])
        self._transport.append(issued.group, columns, close=True, repeat=issued.attempt > 1)

    def _answers(self, task: Task) -> Sequence[str]:
        """Text of each row of a task's group."""
        if not isinstance(task.label, str):
            raise ConfigError(
                f"dataset: task {task.index} has the label {task.label!r}; supervised training needs text"
            )
        return [task.label]

    def _marks(self) -> Sequence[Column]:
        """What tells the rows of a group from one another."""
        return ()

"""The supervised role turns labelled tasks into training rows: no engine, no reward."""

from collections.abc import Sequence

from relax_core.api.columns import Column
from relax_core.api.errors import ConfigError
from relax_core.api.rows import Task
from relax_core.api.transport import Transport
from relax_core.dataflow import columns as core
from relax_core.models.prompts import PromptCodec
from relax_core.roles.collaborators import TaskLedger, TaskSource
from relax_core.roles.role import Progress, Role
from relax_core.roles.source import IssuedTask


class Supervised(Role):
    """One group per task, of one row with its label: prompt untrained, answer and end of sequence trained.

    Args:
        source: Labelled tasks.
        transport: Receives rows.
        codec: Encodes prompts and labels.
        ledger: Told what was made.
        max_prompt_tokens: Longer prompts are dropped.
    """

    name = "supervised"

    def __init__(
        self,
        source: TaskSource,
        transport: Transport,
        codec: PromptCodec,
        ledger: TaskLedger,
        max_prompt_tokens: int | None,
    ) -> None:
        self._source = source
        self._transport = transport
        self._codec = codec
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
        for issued in tasks:
            self._append(issued)
            self._source.finished(issued.group)
        if self._source.exhausted:
            self._transport.finish()
            self._finished = True
        return Progress.WORKED if tasks else Progress.IDLE

    def _append(self, issued: IssuedTask) -> None:
        prompt = self._codec.encode_prompt(issued.task)
        answers = [self._codec.encode_answer(text) for text in self._answers(issued.task)]
        if self._max_prompt_tokens is not None and len(prompt) > self._max_prompt_tokens:
            self._ledger.dropped(issued.group, "prompt_too_long")
            return
        masks = [[False] * len(prompt) + [True] * len(answer) for answer in answers]
        rows = [[*prompt, *answer] for answer in answers]
        columns = [Column.of(core.TOKENS, rows), Column.of(core.LOSS_MASK, masks), *self._marks()]
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

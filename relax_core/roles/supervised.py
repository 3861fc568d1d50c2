"""The supervised role turns labelled tasks into training rows: no engine, no reward."""

from relax_core.api.columns import Column
from relax_core.api.errors import ConfigError
from relax_core.api.transport import Transport
from relax_core.dataflow import columns as core
from relax_core.models.prompts import PromptCodec
from relax_core.roles.collaborators import TaskLedger, TaskSource
from relax_core.roles.role import Progress, Role
from relax_core.roles.source import IssuedTask


class Supervised(Role):
    """One group of one row per task: prompt untrained, label and end of sequence trained.

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
        self._finished = False

    async def step(self) -> Progress:
        """Appends a row for every task that may start."""
        if self._finished:
            return Progress.DONE
        tasks = self._source.admitted()
        for issued in tasks:
            self._append(issued)
            self._source.finished(issued.group)
        if self._source.exhausted:
            self._transport.finish()
            self._finished = True
        return Progress.WORKED if tasks else Progress.IDLE

    def _append(self, issued: IssuedTask) -> None:
        label = issued.task.label
        if not isinstance(label, str):
            raise ConfigError(
                f"dataset: task {issued.task.index} has the label {label!r}; supervised training needs text"
            )
        prompt, answer = self._codec.encode_prompt(issued.task), self._codec.encode_answer(label)
        if self._max_prompt_tokens is not None and len(prompt) > self._max_prompt_tokens:
            self._ledger.dropped(issued.group, "prompt_too_long")
            return
        mask = [False] * len(prompt) + [True] * len(answer)
        columns = [Column.of(core.TOKENS, [[*prompt, *answer]]), Column.of(core.LOSS_MASK, [mask])]
        self._ledger.generated(issued.group, 1, len(answer), [])
        self._transport.append(issued.group, columns, close=True)

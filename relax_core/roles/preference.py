"""The preference role turns tasks with a better and a worse answer into pairs of training rows."""

from collections.abc import Mapping, Sequence

from relax_core.api.columns import Column
from relax_core.api.errors import ConfigError
from relax_core.api.rows import Task
from relax_core.dataflow import columns as core
from relax_core.roles.supervised import Supervised

PAIR = ("chosen", "rejected")
"""Keys of the label of a preference task, in the order of the rows."""


class Preference(Supervised):
    """One group per task, of two rows: the chosen answer, then the rejected one. Both are trained on."""

    name = "preference"

    def _answers(self, task: Task) -> Sequence[str]:
        label = task.label
        if not isinstance(label, Mapping) or not label.keys() >= set(PAIR):
            raise ConfigError(
                f"dataset: task {task.index} has the label {label!r}; a preference has `chosen` and `rejected`"
            )
        return [_text(task, name) for name in PAIR]

    def _marks(self) -> Sequence[Column]:
        return [Column.of(core.PREFERRED, [True, False])]


def _text(task: Task, name: str) -> str:
    """An answer as text: given as such, or as the assistant's message, perhaps behind those of the prompt."""
    answer = task.label[name]
    if isinstance(answer, str):
        return answer
    messages = [dict(message) for message in answer] if isinstance(answer, Sequence) else []
    asked = [{"role": "user", "content": task.prompt}] if isinstance(task.prompt, str) else list(task.prompt)
    said = messages[-1] if messages and messages[:-1] in ([], [dict(message) for message in asked]) else {}
    if said.get("role") != "assistant" or not isinstance(said.get("content"), str):
        raise ConfigError(
            f"dataset: task {task.index}: `{name}` is neither a text nor one message of the assistant, with a text as "
            "its content, after those of the prompt"
        )
    return str(said["content"])

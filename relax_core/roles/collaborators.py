"""What roles ask of those around them: objects of this process, or proxies of objects elsewhere."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from relax_core.api.media import Prompt
from relax_core.api.rows import Task
from relax_core.roles.source import IssuedTask


class Prompts(Protocol):
    """Encodes tasks; see :class:`relax_core.models.prompts.PromptCodec` and
    :class:`relax_core.media.prompts.MediaPrompts`."""

    carries_media: bool
    """Whether rows name the media of their group."""

    async def encode(self, task: Task, most_tokens: int | None = None) -> Prompt:
        """A prompt as a model reads it; ``MediaError`` where that is not possible, ``PromptTooLong`` where it is known
        before its media are decoded that it has over ``most_tokens``."""

    def prefetch(self, tasks: Iterable[Task], most_tokens: int | None = None) -> None:
        """Begins with the media of tasks that come next, where rows carry media."""

    def encode_answer(self, text: str) -> list[int]:
        """Token ids of a label as the model should write it."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of some tokens."""


class TaskSource(Protocol):
    """Hands out tasks; see :class:`relax_core.roles.source.Source`."""

    @property
    def exhausted(self) -> bool:
        """Whether the last task has been handed out."""

    @property
    def complete(self) -> bool:
        """Whether the next batches have all their groups: what still runs is surplus."""

    def admitted(self, patience: float = 0.0) -> list[IssuedTask]:
        """All tasks that may start now, issued; a source elsewhere waits up to ``patience`` seconds for one."""

    def upcoming(self, most: int) -> list[Task]:
        """The tasks that will be handed out next."""

    def unfinished(self) -> list[IssuedTask]:
        """Tasks handed out before to somebody who is gone."""

    def finished(self, group: int) -> None:
        """The group is in the transport, or dropped."""


class TaskLedger(Protocol):
    """Is told what became of groups; see :class:`relax_core.dataflow.ledger.Ledger`."""

    def generated(self, group: int, rows: int, tokens: int, versions: Sequence[int]) -> None:
        """All rows of a group exist."""

    def dropped(self, group: int, reason: str, rewards: Mapping[str, int] | None = None) -> None:
        """A group leaves without being trained on."""

    def counts(self) -> dict[str, int]:
        """``issued``, ``trained``, ``dropped``, ``pending``."""


class Reporter(Protocol):
    """Receives what people may want to see; see :class:`relax_core.metrics.hub.MetricHub`."""

    def write(self, stream: str, step: int, metrics: Mapping[str, float]) -> None:
        """Numbers of one step."""

    def text(self, stream: str, step: int, name: str, value: str) -> None:
        """A text of one step."""

    def count(self, name: str, amount: int = 1) -> None:
        """Adds to a counter."""


class Publications(Protocol):
    """Weights on their way to engines, beside training; see :class:`relax_core.weights.publisher.Publisher`."""

    @property
    def sending(self) -> bool:
        """Whether something is still on its way."""

    async def ended(self) -> None:
        """Returns when nothing is on its way any more, however it ended."""

    async def settled(self) -> None:
        """As :meth:`ended`, and raises what it failed with."""


class Batches(Protocol):
    """Remembers what the actor has begun and finished; see :class:`relax_core.roles.batches.BatchLog`."""

    @property
    def begun(self) -> tuple[int, ...]:
        """Groups of the batch in training."""

    @property
    def finished(self) -> tuple[int, ...]:
        """Groups of the last batch that was trained and published."""

    @property
    def counters(self) -> Mapping[str, int | float]:
        """The actor's, at whichever came last of begin and finish; in a batch also the ``version`` it began with."""

    def begin(self, groups: Sequence[int], counters: Mapping[str, int | float]) -> None:
        """A batch starts."""

    def finish(self, counters: Mapping[str, int | float]) -> None:
        """The batch that was begun is trained and published."""

    def dropped(self, group: int, reason: str) -> None:
        """A group leaves without being trained on."""

"""What the embedded engine keeps of a request beside what every engine does."""

from dataclasses import dataclass
from functools import cached_property

from relax_core.engines.requests import restricts
from relax_core.engines.trajectory import Trajectory


@dataclass(eq=False)
class TorchTrajectory(Trajectory):
    """A trajectory that waits, or is decoded in a batch.

    Args:
        arrival: Counts requests, so that of equal priorities the older goes first.
        stop_ids: Token ids that end it.
        aborted: Set from the event loop, read between decode steps.
    """

    arrival: int
    stop_ids: frozenset[int]
    aborted: bool = False

    def __post_init__(self) -> None:
        self.support = [] if restricts(self.request.sampling) else None

    @property
    def longest(self) -> int:
        """Tokens of prompt and answer that it may reach."""
        return len(self.request.prompt_ids) + self.limit

    @property
    def sequence(self) -> tuple[int, ...]:
        """Prompt and generated tokens."""
        return (*self.request.prompt_ids, *self.token_ids)

    @cached_property
    def media_keys(self) -> tuple[str, ...]:
        """What tells its media from those of others, beside :attr:`sequence`."""
        return tuple(each.key for each in self.request.media)

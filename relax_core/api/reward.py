"""Rewards judge what a model wrote."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from relax_core.api.rows import Sample, Score


class Reward(ABC):
    """Scores the trajectories of one group; deterministic for equal input, in the order given."""

    def __init__(self, config: Any, context: Any) -> None: ...

    async def start(self) -> None:
        """Loads what scoring needs; errors here are errors of the configuration."""

    @abstractmethod
    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        """One score per sample. All samples answer the same task.

        An error is raised, never turned into a zero; ``Score(None)`` abstains.

        Raises:
            RewardError: With the task and, for user code, file and line.
        """

    async def close(self) -> None:
        """Ends helpers such as worker processes."""

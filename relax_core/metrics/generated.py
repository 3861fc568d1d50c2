"""What rollouts have generated since they were started, and what is said of it after an update. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class Generated:
    """Of one rollout, or of several together.

    Args:
        tokens: Of whole groups.
        seconds: Of wall time in which something was being generated.
        stopped_groups: Stops of surplus groups.
        begun_rows: Trajectories of whole groups, and of those that have tokens.
        begun_tokens: Of these, apart from those of requests in flight.
    """

    tokens: int = 0
    seconds: float = 0.0
    stopped_groups: int = 0
    begun_rows: int = 0
    begun_tokens: int = 0

    def __add__(self, other: Generated) -> Generated:
        return Generated(
            self.tokens + other.tokens,
            self.seconds + other.seconds,
            self.stopped_groups + other.stopped_groups,
            self.begun_rows + other.begun_rows,
            self.begun_tokens + other.begun_tokens,
        )

    @property
    def mean_length(self) -> float:
        """Mean tokens of all trajectories begun so far."""
        return self.begun_tokens / self.begun_rows if self.begun_rows else 0.0

    def metrics(self, trained_lengths: Sequence[float]) -> dict[str, float]:
        """By name, once something was generated.

        Args:
            trained_lengths: Mean tokens of the answers in each update so far.
        """
        if not self.seconds:
            return {}
        told = {
            "perf/rollout_tokens_per_s": self.tokens / self.seconds,
            "rollout/stopped_groups": float(self.stopped_groups),
        }
        # Whether long answers are trained on less often than they are begun: 1 if not, below 1 if so.
        if self.mean_length:
            told["rollout/length_trained_to_started"] = fmean(trained_lengths) / self.mean_length
        return told

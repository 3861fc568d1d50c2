"""What the actor role has begun and finished; it outlives the role, which may be killed between any two calls."""

from collections import Counter
from collections.abc import Mapping, Sequence

from relax_core.dataflow.ledger import Ledger

COUNTERS: Mapping[str, int | float] = {"updates": 0, "batches": 0, "max_lag": 0, "trained_tokens": 0, "seconds": 0.0}
"""Of the actor role, when it has done nothing."""


class BatchLog:
    """The batch in training, the last one that was finished, and the actor's counters at whichever came last.

    Args:
        ledger: Told which update was the last that used a group.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.begun: tuple[int, ...] = ()
        self.finished: tuple[int, ...] = ()
        self.counters: Mapping[str, int | float] = dict(COUNTERS)

    def begin(self, groups: Sequence[int], counters: Mapping[str, int | float]) -> None:
        """A batch of these groups starts; an actor that starts anew goes on from these counters."""
        self.begun, self.counters = tuple(groups), dict(counters)

    def finish(self, counters: Mapping[str, int | float]) -> None:
        """The batch that was begun is trained and its weights are published."""
        for group in self.begun:
            self._ledger.trained(group, int(counters["updates"]))
        self.finished, self.begun, self.counters = self.begun, (), dict(counters)

    def depth(self) -> dict[str, float]:
        """On which side of the actor groups pile up: those that are being generated, and those that are generated and
        not in the batch in training."""
        begun = set(self.begun)
        stages = Counter(stage for group, stage in self._ledger.pending.items() if group not in begun)
        return {
            "rollout/running_groups": float(stages["issued"]),
            "rollout/queued_groups": float(stages["generated"]),
        }

    def dropped(self, group: int, reason: str) -> None:
        """A group leaves without being trained on."""
        self._ledger.dropped(group, reason)

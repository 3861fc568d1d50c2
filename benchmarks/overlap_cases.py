"""What the benchmarks of overlap simulate, and the bound that no schedule beats.

The bound of roles that work at the same time is the longer of

* generation: the seconds in slots of all trajectories that were trained on, divided by the slots; then the last update;
* training: the seconds in slots of the first batch, divided by the slots; then all updates.

With streaming, only the last group's share of the last update comes after all generation, and training can begin with
the group whose longest trajectory is the shortest. No schedule is faster, whatever its staleness. For roles that take
turns the bound is the sum: all generation, then all updates. No bound contains that the engine stands still for
publications, or that groups are dropped for their age.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

ORIGINAL_SPEED_UP = 1.76
"""Colocated over asynchronous step time that the original Relax reports for Qwen3-4B on 16 H800."""


@dataclass(frozen=True)
class Case:
    """What is simulated; times in seconds.

    Args:
        update: Of the trainer, per batch of one update.
        batches: Trained in all.
        tasks: Groups per batch.
        samples: Trajectories per group.
        slots: Trajectories that the engine computes at once.
        latency: Mean time of a trajectory in its slot.
        sigma: Standard deviation of the logarithm of that time.
        publication: How long the engine stands still for new weights.
        tokens_per_second: Generated in one slot.
    """

    update: float
    batches: int = 20
    tasks: int = 16
    samples: int = 8
    slots: int = 32
    latency: float = 0.25
    sigma: float = 0.7
    publication: float = 0.02
    tokens_per_second: float = 30.0

    @property
    def rollout(self) -> float:
        """Mean seconds of generation per batch while all slots are taken."""
        return self.tasks * self.samples * self.latency / self.slots


@dataclass(frozen=True)
class Mode:
    """How the roles are driven."""

    together: bool
    staleness: int = 0
    streaming: bool = False


CASES = {
    name: Case(update=share * Case(0.0).rollout)
    for name, share in {"rollout-bound": 0.5, "balanced": 1.0, "train-bound": 1.5}.items()
}

MODES = {
    "colocate": Mode(together=False),
    "max_staleness 0, streaming": Mode(together=True, streaming=True),
    "max_staleness 1": Mode(together=True, staleness=1),
    "max_staleness 1, streaming": Mode(together=True, staleness=1, streaming=True),
    "max_staleness 2": Mode(together=True, staleness=2),
}


def ideal(case: Case, mode: Mode, seconds: Mapping[str, float], updates: Mapping[int, int]) -> float:
    """The bound, in seconds.

    Args:
        case: What is simulated.
        mode: How the roles are driven.
        seconds: Slot time of trajectories by the key of their request, ``group/...``.
        updates: Which update trained each group.
    """
    trajectories: dict[int, list[float]] = defaultdict(list)
    for key, slot in seconds.items():
        trajectories[int(key.split("/")[0])].append(slot)
    generation = sum(sum(trajectories[group]) for group in updates) / case.slots
    training = case.batches * case.update
    if not mode.together:
        return generation + training
    first = sum(sum(trajectories[group]) for group, update in updates.items() if update == 1) / case.slots
    last = case.update
    if mode.streaming:
        first, last = min(max(trajectories[group]) for group in updates), case.update / case.tasks
    return max(generation + last, first + training)

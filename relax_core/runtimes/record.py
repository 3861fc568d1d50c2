"""What a run will say of itself at the end."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from relax_core.metrics.clock import CpuClock

FIRST_AND_LAST = 10


@dataclass(frozen=True)
class StageFacts:
    """What the main stage has done so far.

    Args:
        counters: Of the actor role; see :data:`relax_core.roles.batches.COUNTERS`.
        ledger: ``issued``, ``trained``, ``dropped``, ``pending``.
        reasons: Dropped groups by reason.
        rollout_tokens: Tokens generated for training.
        rollout_s: Wall seconds spent on generating them.
    """

    counters: Mapping[str, int | float]
    ledger: Mapping[str, int]
    reasons: Mapping[str, int]
    rollout_tokens: int = 0
    rollout_s: float = 0.0


@dataclass
class RunRecord:
    """Facts collected while a run goes on; survives a resume through ``state`` and ``restore``.

    Args:
        rewards: Mean reward of each update's rows.
        evaluations: Held-out scores by set (the only one of a section has an empty name), then by when: ``warm_start``,
            ``first``, ``last``.
        warmup: Counts of the warm-up stage.
        wall_s: Wall seconds of earlier sittings.
        cpu_s: CPU seconds of earlier sittings.
        rollout_tokens: Tokens generated for training.
        rollout_s: Wall seconds spent on generating them.
        skipped: Updates that changed nothing.
        looked_at: Updates after which everything that was due is done; an evaluation that was interrupted still is.
    """

    rewards: list[float] = field(default_factory=list)
    evaluations: dict[str, dict[str, float | None]] = field(default_factory=dict)
    warmup: dict[str, Any] | None = None
    wall_s: float = 0.0
    cpu_s: float = 0.0
    rollout_tokens: int = 0
    rollout_s: float = 0.0
    skipped: int = 0
    looked_at: int = 0

    def evaluated(self, scores: Mapping[str, float | None], update: int | None) -> None:
        """Takes down held-out scores by set, after an update of the main stage; ``None``: before the warm-up."""
        for name, score in scores.items():
            known = self.evaluations.setdefault(name, {})
            if update is None:
                known["warm_start"] = score
                continue
            if update == 0:
                known["first"] = score
            known["last"] = score

    def state(self, clock: CpuClock, facts: StageFacts) -> dict[str, Any]:
        """Everything as JSON values, this sitting's seconds and tokens included."""
        wall, cpu = self._seconds(clock)
        return {
            **asdict(self),
            "wall_s": wall,
            "cpu_s": cpu,
            "rollout_tokens": self.rollout_tokens + facts.rollout_tokens,
            "rollout_s": self.rollout_s + facts.rollout_s,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over what :meth:`state` gave."""
        for name, value in state.items():
            setattr(self, name, value)

    def summary(self, clock: CpuClock, facts: StageFacts) -> dict[str, Any]:
        """The numbers of ``summary.json`` that do not depend on the configuration."""
        tokens, seconds = self.rollout_tokens + facts.rollout_tokens, self.rollout_s + facts.rollout_s
        wall, cpu = self._seconds(clock)
        actor = facts.counters
        return {
            "updates": actor["updates"],
            "reward_first10": _mean(self.rewards[:FIRST_AND_LAST]),
            "reward_last10": _mean(self.rewards[-FIRST_AND_LAST:]),
            **{f"eval_{when}": self.evaluations.get("", {}).get(when) for when in ("warm_start", "first", "last")},
            "evaluations": {name: scores for name, scores in self.evaluations.items() if name},
            "wall_s": round(wall, 3),
            "cpu_s": round(cpu, 3),
            "rollout_tokens_per_s": _rate(tokens, seconds),
            "train_tokens_per_s": _rate(actor["trained_tokens"], actor["seconds"]),
            "max_lag": actor["max_lag"],
            **facts.ledger,
            "dropped_reasons": dict(facts.reasons),
            "warmup": self.warmup,
        }

    def _seconds(self, clock: CpuClock) -> tuple[float, float]:
        elapsed = clock.elapsed()
        return self.wall_s + elapsed.wall, self.cpu_s + elapsed.cpu + elapsed.children


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _rate(amount: float, seconds: float) -> float | None:
    return round(amount / seconds, 1) if seconds else None

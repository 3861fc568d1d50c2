"""Times at which something happened, as sets of moments."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Cover:
    """Times at which something happened: disjoint intervals, ascending.

    Args:
        starts: float64 ``[n]`` seconds.
        ends: float64 ``[n]`` seconds.
    """

    starts: Seconds
    ends: Seconds

    @classmethod
    def of(cls, spans: Iterable[Mapping[str, Any]]) -> "Cover":
        """The union of spans with ``start`` and ``end``."""
        ordered = sorted((float(span["start"]), float(span["end"])) for span in spans)
        merged: list[list[float]] = []
        for start, end in ordered:
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        times = np.array(merged, np.float64).reshape(-1, 2)
        return cls(times[:, 0], times[:, 1])

    def until(self, times: npt.ArrayLike) -> Seconds:
        """Covered seconds before each of some times, of the shape of ``times``."""
        moments = np.asarray(times, np.float64)
        if not len(self.starts):
            return np.zeros_like(moments)
        borders = np.stack([self.starts, self.ends], axis=1).reshape(-1)
        covered = np.concatenate([[0.0], np.cumsum(self.ends - self.starts)])
        return np.interp(moments, borders, np.repeat(covered, 2)[1:-1])

    def within(self, start: npt.ArrayLike, end: npt.ArrayLike) -> Seconds:
        """Covered seconds between two times."""
        return self.until(end) - self.until(start)

    def both(self, other: "Cover") -> float:
        """Seconds that two covers share."""
        return float(np.sum(other.within(self.starts, self.ends)))

    def without(self, other: "Cover") -> "Cover":
        """The parts of this cover that lie outside another."""
        return self._parts(other, inside=False)

    def common(self, other: "Cover") -> "Cover":
        """The parts of this cover that lie inside another."""
        return self._parts(other, inside=True)

    def _parts(self, other: "Cover", inside: bool) -> "Cover":
        borders = np.unique(np.concatenate([self.starts, self.ends, other.starts, other.ends]))
        starts, ends = borders[:-1], borders[1:]
        kept = (self.within(starts, ends) > 0) & ((other.within(starts, ends) > 0) == inside)
        return Cover(starts[kept], ends[kept])

    @property
    def seconds(self) -> float:
        """Covered seconds."""
        return float(np.sum(self.ends - self.starts))

"""Where a stage can go back to: what its trainer was at some update, and what its state was. Imports no torch."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relax_core.api.errors import RelaxError
from relax_core.checkpoint.store import CheckpointStore

RECOVERY = "recovery"
"""Folder of the trainer's points within a run's folder."""

KEEP = 2
"""The last point may be of a batch whose end the state has not heard of: then the one before is needed."""


class StageLost(RelaxError):
    """Something is gone that cannot be brought back beside what goes on: the stage must go back.

    Args:
        name: Of what is gone.
        cause: How that was seen.
    """

    def __init__(self, name: str, cause: object) -> None:
        super().__init__(f"{name}: {cause}")
        self.name, self.cause = name, str(cause)


@dataclass(frozen=True)
class TrainerPoint:
    """A trainer as it was after an update.

    Args:
        update: Number of that update; 0 before the first.
        policy: What the ranks load; ``None``: nothing but the model that the stage began with.
        version: Under which these weights are published; ``None``: the stage begins with them.
        made: The results of the last batch's updates, for a front that has not heard of them.
    """

    update: int
    policy: Path | None = None
    version: int | None = None
    made: Sequence[Any] = ()


@dataclass(frozen=True)
class Boundary:
    """The state of a stage between two batches.

    Args:
        update: Number of the last update before it.
        held: Whether the source waits there for an evaluation or a checkpoint.
        stage: See :meth:`relax_core.runtimes.serve.state.RunState.checkpoint`.
    """

    update: int
    held: bool
    stage: Mapping[str, Any]


def recovery_points(directory: Path) -> CheckpointStore:
    """Points that the trainer saves as it goes, in a run's folder."""
    return CheckpointStore(directory / RECOVERY, KEEP)


@dataclass(frozen=True)
class TrainerPoints:
    """All points that the ranks can be started from.

    Args:
        start: Where this sitting began.
        directory: The run's folder.
        checkpoints: Of the run.
    """

    start: TrainerPoint
    directory: Path
    checkpoints: CheckpointStore

    def at(self, update: int) -> TrainerPoint | None:
        """The point after that update, if there is one."""
        if update == self.start.update:
            return self.start
        for store in (recovery_points(self.directory), self.checkpoints):
            found = store.latest(at_most=update)
            if found is not None and found.update == update:
                return _point(found.update, found.policy, found.state)
        return None

    def beyond(self, update: int) -> TrainerPoint | None:
        """The point at the end of the batch that was begun after that update, if its updates are all made."""
        found = recovery_points(self.directory).latest()
        if found is None or found.update <= update:
            return None
        return _point(found.update, found.policy, found.state)

    def forget_beyond(self, update: int) -> None:
        """Removes the points after that update: what led to them is lost, and made once more. The ranks that wrote
        them must be dead, or stand at that update."""
        store = recovery_points(self.directory)
        while (found := store.latest()) is not None and found.update > update:
            shutil.rmtree(found.path)


def _point(update: int, policy: Path, state: Mapping[str, Any]) -> TrainerPoint:
    """From a recovery point, or from a checkpoint of the run, which holds no updates: a front has heard of them."""
    return TrainerPoint(update, policy, state["version"], state.get("made", ()))


class Boundaries:
    """The boundaries that the stage may have to go back to, of which it began with one.

    Args:
        start: The first.
    """

    def __init__(self, start: Boundary) -> None:
        self._known = [start]
        self._version = _version_at(start)

    def add(self, boundary: Boundary, points: TrainerPoints) -> None:
        """The stage has come to a boundary; others without a point of the trainer are of no use any more."""
        first, *others = self._known
        kept = [known for known in others if points.at(known.update) is not None]
        self._known = [first, *kept, boundary]
        self._version = max(self._version, _version_at(boundary))

    def last(self) -> Boundary:
        """Where the stage stood last."""
        return self._known[-1]

    def newest(self, standing: int | None, points: TrainerPoints) -> Boundary:
        """The newest that the trainer can be at.

        Args:
            standing: Update at which the ranks are; ``None`` when they have to be started anew.
            points: Where they can be started from.
        """
        reachable = (known for known in reversed(self._known) if known.update == standing or points.at(known.update))
        return next(reachable)

    def claim_version(self) -> int:
        """At least the version that was published last, for a trainer that is started anew and publishes the next. No
        two callers get the same."""
        # Since the last boundary that was told of, one batch more may have been published.
        published = self._version + 1
        self._version = published + 1
        return published

    def forget_beyond(self, boundary: Boundary) -> None:
        """The stage has gone back to a boundary. Engines have not: no version comes twice."""
        self._known = [known for known in self._known if known.update <= boundary.update]


def _version_at(boundary: Boundary) -> int:
    version: int = boundary.stage["versions"]["last"]
    return version

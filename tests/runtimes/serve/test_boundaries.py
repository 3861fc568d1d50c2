"""Where a stage can go back to: points and results of the trainer on disk, boundaries, versions."""

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from relax_core.api.errors import TrainingError
from relax_core.api.trainer import Sums
from relax_core.checkpoint.store import CheckpointStore
from relax_core.runtimes.serve.recovery import Boundaries, Boundary, TrainerPoint, TrainerPoints, recovery_points
from relax_core.runtimes.serve.updates import MadeUpdates


def at_boundary(update: int, version: int) -> Boundary:
    return Boundary(update, False, {"versions": {"last": version}})


def point(directory: Path, update: int, **state: Any) -> None:
    recovery_points(directory).write(update, lambda policy: None, state)


def test_points_of_the_trainer_are_those_on_disk(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(tmp_path / "checkpoints", 5)
    points = TrainerPoints(TrainerPoint(4), tmp_path, checkpoints)
    assert (points.at(4), points.at(6), points.beyond(4)) == (TrainerPoint(4), None, None)
    checkpoints.write(6, lambda policy: None, {"version": 3})
    for update in (8, 10, 12):
        point(tmp_path, update, version=update // 2, made=[])
    six, twelve = points.at(6), points.beyond(10)
    assert six is not None and (six.version, six.made) == (3, ()) and six.policy is not None
    assert points.at(8) is None, "two are kept"
    assert twelve is not None and (twelve.update, twelve.version) == (12, 6)
    assert points.beyond(12) is None


def test_the_stage_goes_back_to_where_the_trainer_is_or_can_be(tmp_path: Path) -> None:
    points = TrainerPoints(TrainerPoint(0), tmp_path, CheckpointStore(tmp_path / "checkpoints", 2))
    boundaries = Boundaries(at_boundary(0, 1))
    for update in range(1, 6):
        if update in (2, 4):
            point(tmp_path, update, version=update, made=[])
        boundaries.add(at_boundary(update, update + 1), points)
    assert boundaries.newest(5, points).update == 5
    assert boundaries.newest(None, points).update == 4
    assert boundaries.newest(6, points).update == 4, "the trainer is beyond everything that is known"
    boundaries.forget_beyond(boundaries.newest(None, points))
    assert boundaries.last().update == 4
    shutil.rmtree(tmp_path / "recovery")
    assert boundaries.newest(None, points).update == 0


def test_points_of_what_is_made_once_more_are_removed(tmp_path: Path) -> None:
    points = TrainerPoints(TrainerPoint(0), tmp_path, CheckpointStore(tmp_path / "checkpoints", 2))
    for update in (2, 4):
        point(tmp_path, update, version=update, made=[])
    points.forget_beyond(4)
    assert points.beyond(2) is not None
    points.forget_beyond(2)
    assert (points.beyond(2), points.at(4)) == (None, None)
    assert points.at(2) is not None


def test_no_version_is_claimed_twice(tmp_path: Path) -> None:
    points = TrainerPoints(TrainerPoint(0), tmp_path, CheckpointStore(tmp_path / "checkpoints", 2))
    start = at_boundary(0, 1)
    boundaries = Boundaries(start)
    boundaries.add(at_boundary(2, 2), points)
    assert boundaries.claim_version() == 3, "one batch more may have been published"
    boundaries.forget_beyond(start)
    assert boundaries.claim_version() == 5, "so may the version after the one claimed, and that of a batch"
    boundaries.add(at_boundary(2, 9), points)
    assert boundaries.claim_version() == 10


def made(updates: MadeUpdates, number: int, rows: Collection[int], sums: Sums) -> Any:
    """The result of an update that is made if it has not been."""
    updates.accumulate(number, rows, True, lambda: sums)
    return updates.apply(number, lambda summed: {"grad_norm": float("inf")})


def test_results_of_updates_survive_on_disk_as_they_are() -> None:
    sums = Sums(float("nan"), 0.1, {"ratio": (1 / 3, 2.0)}, 7)
    updates = MadeUpdates(2)
    made(updates, 1, (4, 5), sums)
    other = MadeUpdates(2, updates.last, json.loads(json.dumps(updates.state(), allow_nan=False)))
    back, applied = made(other, 1, (4, 5), Sums())
    assert repr(back) == repr(sums)
    assert applied == {"grad_norm": float("inf")}
    with pytest.raises(TrainingError, match="other rows"):
        made(other, 1, (4, 6), Sums())
    with pytest.raises(TrainingError, match="made already"):
        made(MadeUpdates(2, 3), 1, (4, 5), Sums())

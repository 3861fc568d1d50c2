"""Staleness: the bound at admission holds in order, and lag is that of the oldest trainable token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.api.columns import Column, Table
from relax_core.dataflow.columns import LOSS_MASK, SEGMENTS
from relax_core.dataflow.staleness import Admission, lag, lags

Row = tuple[list[tuple[int, int]], list[bool]]


@st.composite
def rows(draw: st.DrawFn) -> Row:
    mask = draw(st.lists(st.booleans(), max_size=12))
    starts = sorted(draw(st.sets(st.integers(0, len(mask)), max_size=4)) | {0})
    return [(start, draw(st.integers(0, 9))) for start in starts], mask


def expected_lag(row: Row, trainer_version: int) -> int:
    segments, mask = row
    versions = [
        [version for start, version in segments if start <= token][-1] for token in range(1, len(mask)) if mask[token]
    ]
    return trainer_version - min(versions) if versions else 0


@given(rows(), st.integers(0, 12))
def test_lag_is_that_of_the_oldest_trainable_token(row: Row, trainer_version: int) -> None:
    assert lag(*row, trainer_version) == expected_lag(row, trainer_version)


@given(st.lists(rows(), max_size=6), st.integers(0, 12))
def test_lags_treats_each_row_alone(batch: list[Row], trainer_version: int) -> None:
    columns = {
        "segments": Column.of(SEGMENTS, [segments for segments, _ in batch]),
        "loss_mask": Column.of(LOSS_MASK, [mask for _, mask in batch]),
    }
    table = Table(np.arange(len(batch)), np.zeros(len(batch), np.int64), columns)
    assert lags(table, trainer_version).tolist() == [expected_lag(row, trainer_version) for row in batch]


def test_rows_without_trainable_tokens_need_no_segment() -> None:
    columns = {
        "segments": Column.of(SEGMENTS, [np.empty((0, 2)), [[2, 3]], np.empty((0, 2))]),
        "loss_mask": Column.of(LOSS_MASK, [[False, False], [False, False, True], []]),
    }
    table = Table(np.arange(3), np.zeros(3, np.int64), columns)
    assert lags(table, 5).tolist() == [0, 2, 0]


def test_a_trainable_token_without_a_version_is_an_error() -> None:
    for segments in ([], [(2, 1)]):
        with pytest.raises(ValueError, match="before the first segment"):
            lag(segments, [False, True, True], 3)


@given(
    st.integers(1, 4),
    st.integers(0, 3),
    st.lists(st.sampled_from(["issue", "complete", "drop", "train", "publish"]), max_size=200),
)
def test_groups_trained_in_order_stay_within_the_bound(batch_groups: int, max_staleness: int, steps: list[str]) -> None:
    admission = Admission(batch_groups, max_staleness)
    version = 0
    running: list[int] = []
    queued: list[int] = []
    training: list[int] = []
    for step in steps:
        if step == "issue":
            room = admission.room(len(running), len(queued) + len(training))
            running += [version] * room
            assert admission.room(len(running), len(queued) + len(training)) == 0
        elif step == "complete" and running:
            queued.append(running.pop(0))
        elif step == "drop" and queued:
            queued.pop()
        elif step == "train" and not training and len(queued) >= batch_groups:
            training, queued = queued[:batch_groups], queued[batch_groups:]
            assert version - min(training) <= max_staleness
        elif step == "publish" and training:
            training, version = [], version + 1


def test_room_is_never_negative() -> None:
    assert Admission(4, 1).capacity == 8
    assert Admission(4, 1).room(running=6, queued=1) == 1
    assert Admission(4, 1).room(running=9, queued=3) == 0

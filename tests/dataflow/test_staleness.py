"""Staleness: the bound at admission holds in order, and lag is that of the oldest trainable token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.api.columns import Column, Table
from relax_core.dataflow.columns import LOSS_MASK, SEGMENTS
from relax_core.dataflow.staleness import Admission, Staleness, lag, lags

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


def table_of(batch: list[Row]) -> Table:
    columns = {
        "segments": Column.of(SEGMENTS, [segments for segments, _ in batch]),
        "loss_mask": Column.of(LOSS_MASK, [mask for _, mask in batch]),
    }
    return Table(np.arange(len(batch)), np.zeros(len(batch), np.int64), columns)


@given(st.lists(rows(), max_size=5), st.integers(0, 12), st.sets(st.integers(1, 12)))
def test_a_version_that_only_repeats_the_one_before_makes_nothing_older(
    batch: list[Row], trainer_version: int, republished: set[int]
) -> None:
    policies = [version - len([each for each in republished if each <= version]) for version in range(13)]
    renumbered = [([(start, policies[version]) for start, version in segments], mask) for segments, mask in batch]
    staleness = Staleness(republished=sorted(republished))
    table = table_of(batch)
    found = staleness.lags(table, trainer_version)
    assert found.tolist() == lags(table_of(renumbered), policies[trainer_version]).tolist()
    assert (table["segments"].values == table_of(batch)["segments"].values).all(), "the table is not ours to change"


def test_tables_without_segments_are_left_to_those_who_made_them() -> None:
    table = Table(np.arange(2), np.zeros(2, np.int64), {"loss_mask": Column.of(LOSS_MASK, [[False], [False]])})
    with pytest.raises(KeyError):
        Staleness(republished=[1]).lags(table, 3)


@given(st.lists(st.integers(0, 9), max_size=6), st.integers(0, 5))
def test_reweight_scales_what_is_beyond_the_bound_and_nothing_else(lag_of: list[int], bound: int) -> None:
    found = Staleness(bound, "reweight").scale(np.array(lag_of, np.int64))
    expected = [(bound + 1) / (each + 1) if each > bound else 1.0 for each in lag_of]
    if all(each <= bound for each in lag_of):
        assert found is None
    else:
        assert found is not None and found.dtype == np.float32
        assert found.tolist() == pytest.approx(expected)
    for policy in ("drop", "keep"):
        assert Staleness(bound, policy).scale(np.array(lag_of, np.int64)) is None  # type: ignore[arg-type]


@given(st.integers(1, 4), st.integers(0, 3), st.integers(0, 5), st.data())
def test_a_surplus_runs_beyond_the_capacity_until_the_next_batches_are_complete(
    batch_groups: int, max_staleness: int, surplus: int, data: st.DataObject
) -> None:
    admission = Admission(batch_groups, max_staleness, surplus)
    queued = data.draw(st.integers(0, admission.capacity + surplus))
    running = data.draw(st.integers(0, admission.capacity + surplus - queued))
    room = admission.room(running, queued)
    assert running + queued + room == (max_staleness + 1) * batch_groups + surplus
    assert admission.complete(queued) == (queued >= (max_staleness + 1) * batch_groups)

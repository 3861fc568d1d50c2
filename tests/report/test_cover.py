"""Covers are sets of moments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.report.cover import Cover

INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=12)


def cover(intervals: list[tuple[int, int]]) -> Cover:
    return Cover.of([{"start": start, "end": start + length} for start, length in intervals])


def seconds(intervals: list[tuple[int, int]]) -> set[int]:
    """The same, one whole second at a time."""
    return {second for start, length in intervals for second in range(start, start + length)}


@given(INTERVALS, INTERVALS, st.integers(0, 50), st.integers(0, 50))
def test_covers_are_sets_of_moments(
    first: list[tuple[int, int]], second: list[tuple[int, int]], one: int, other: int
) -> None:
    start, end = sorted((one, other))
    assert cover(first).seconds == pytest.approx(len(seconds(first)))
    assert cover(first).both(cover(second)) == pytest.approx(len(seconds(first) & seconds(second)))
    assert cover(first).without(cover(second)).seconds == pytest.approx(len(seconds(first) - seconds(second)))
    assert cover(first).common(cover(second)).seconds == pytest.approx(len(seconds(first) & seconds(second)))
    assert cover(first).within(start, end) == pytest.approx(len(seconds(first) & {*range(start, end)}))

"""Generations that were cut into pieces are what they were in one; rows tell which of their tokens are trained."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.api.columns import Column
from relax_core.api.engine import Generation
from relax_core.api.rows import StopReason
from relax_core.dataflow import columns as core
from relax_core.dataflow.rows import joined, rows_of, trainable_counts

EMPTY = Generation("0/0", (), np.empty(0, np.float32), StopReason.ABORT, ())


def segments_of(versions: list[int]) -> tuple[tuple[int, int], ...]:
    """``(start, version)`` wherever the version changes."""
    return tuple(
        (place, version) for place, version in enumerate(versions) if not place or versions[place - 1] != version
    )


@st.composite
def generations(draw: st.DrawFn, support: bool | None = None) -> tuple[Generation, list[int]]:
    """A generation, and the version of each of its tokens."""
    versions = sorted(draw(st.lists(st.integers(0, 4), max_size=12)))
    tokens = draw(st.lists(st.integers(0, 99), min_size=len(versions), max_size=len(versions)))
    with_support = draw(st.booleans()) if support is None else support
    generation = Generation(
        "0/0",
        tuple(tokens),
        -np.arange(1, len(tokens) + 1, dtype=np.float32),
        draw(st.sampled_from([StopReason.STOP, StopReason.LENGTH])),
        segments_of(versions),
        tuple(np.arange(token % 3 + 1, dtype=np.int32) + token for token in tokens) if with_support else None,
    )
    return generation, versions


def cut(whole: Generation, versions: list[int], start: int, stop: int) -> Generation:
    """What an engine would have given for these tokens alone, stopped at their end."""
    return Generation(
        whole.key,
        whole.token_ids[start:stop],
        whole.logprobs[start:stop],
        whole.stop_reason if stop == len(versions) else StopReason.ABORT,
        segments_of(versions[start:stop]),
        None if whole.support is None else whole.support[start:stop],
    )


def assert_equal(found: Generation, expected: Generation) -> None:
    assert (found.key, found.token_ids, found.stop_reason) == (expected.key, expected.token_ids, expected.stop_reason)
    assert found.segments == expected.segments
    assert found.logprobs.dtype == np.float32
    np.testing.assert_array_equal(found.logprobs, expected.logprobs)
    assert (found.support is None) == (expected.support is None)
    for ids, same in zip(found.support or (), expected.support or (), strict=True):
        np.testing.assert_array_equal(ids, same)


@given(generations(), st.data())
def test_the_pieces_of_a_generation_make_it_whole(made: tuple[Generation, list[int]], data: st.DataObject) -> None:
    whole, versions = made
    borders = sorted(data.draw(st.lists(st.integers(0, len(versions)), max_size=4)))
    pieces = [
        cut(whole, versions, start, stop) for start, stop in zip([0, *borders], [*borders, len(versions)], strict=True)
    ]
    assert_equal(functools.reduce(joined, pieces), whole)


def test_a_piece_without_tokens_changes_nothing_but_the_end() -> None:
    some = Generation("0/0", (5,), np.array([-1], np.float32), StopReason.STOP, ((0, 3),))
    assert joined(EMPTY, some).segments == ((0, 3),)
    assert joined(some, EMPTY).stop_reason is StopReason.ABORT
    assert joined(some, EMPTY).segments == ((0, 3),)


@given(
    st.lists(st.integers(0, 99), min_size=1, max_size=4),
    st.lists(generations(True), min_size=1, max_size=4),
    st.booleans(),
)
def test_rows_train_what_was_generated_or_the_part_of_the_last_version(
    prompt: list[int], made: list[tuple[Generation, list[int]]], only_last: bool
) -> None:
    columns = {column.spec.name: column for column in rows_of(prompt, [whole for whole, _ in made], only_last)}
    for row, (whole, versions) in enumerate(made):
        trained = [not only_last or version == versions[-1] for version in versions]
        assert columns["tokens"][row].tolist() == [*prompt, *whole.token_ids]
        assert columns["loss_mask"][row].tolist() == [False] * len(prompt) + trained
        assert columns["rollout_logprobs"][row].tolist() == [0.0] * len(prompt) + whole.logprobs.tolist()
        starts = [(start + len(prompt), version) for start, version in whole.segments]
        assert [tuple(pair) for pair in columns["segments"][row].tolist()] == starts
        assert int(columns["stop_reason"][row]) == whole.stop_reason
        assert whole.support is not None
        kept = [ids for ids, train in zip(whole.support, trained, strict=True) if train]
        counts = iter(len(ids) for ids in kept)
        expected = [0] * len(prompt) + [next(counts) if train else 0 for train in trained]
        assert columns["support_counts"][row].tolist() == expected
        assert columns["support_ids"][row].tolist() == [each for ids in kept for each in ids.tolist()]


@pytest.mark.parametrize("only_last", [False, True])
def test_rows_without_support_have_no_column_of_it(only_last: bool) -> None:
    some = Generation("0/0", (5,), np.array([-1], np.float32), StopReason.STOP, ((0, 3),))
    names = {column.spec.name for column in rows_of([1], [some, EMPTY], only_last)}
    assert names == {"tokens", "loss_mask", "rollout_logprobs", "segments", "stop_reason"}


@given(st.lists(st.lists(st.booleans(), max_size=6), max_size=5))
def test_trainable_tokens_are_those_of_the_mask_but_the_first(masks: list[list[bool]]) -> None:
    expected = [sum(mask[1:]) for mask in masks]
    assert trainable_counts(Column.of(core.LOSS_MASK, masks)).tolist() == expected

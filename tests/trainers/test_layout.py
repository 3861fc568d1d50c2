from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relax_core.api.columns import Column, Table
from relax_core.dataflow.columns import LOSS_MASK, TOKENS
from relax_core.trainers.layout import Layout, lay_out

Rows = list[list[bool]]
ROWS = st.lists(st.lists(st.booleans(), max_size=8), min_size=1, max_size=6)
PADDED: dict[str, bool] = {}
PACKED, SHARED = {"packing": True}, {"share_up_to": 1000}


def table_of(masks: Rows) -> Table:
    starts = np.cumsum([0, *map(len, masks)])
    tokens = [np.arange(start, start + len(mask)) + 100 for start, mask in zip(starts, masks, strict=False)]
    return grouped(tokens, masks, [0] * len(masks))


def grouped(tokens: Sequence[Sequence[int]], masks: Rows, groups: list[int]) -> Table:
    columns = {"tokens": Column.of(TOKENS, tokens), "loss_mask": Column.of(LOSS_MASK, masks)}
    return Table(np.arange(len(masks)), np.array(groups), columns)


def trainable(masks: Rows) -> list[tuple[int, int]]:
    return [(row, place) for row, mask in enumerate(masks) for place in range(1, len(mask)) if mask[place]]


@given(masks=ROWS, how=st.sampled_from([PADDED, PACKED, SHARED]))
def test_every_trainable_token_is_predicted_from_the_one_before_it(masks: Rows, how: dict[str, bool]) -> None:
    layout = lay_out(table_of(masks), "cpu", **how)
    if layout is None:
        assert not trainable(masks)
        return
    starts = np.cumsum([0, *map(len, masks)])
    expected = [starts[row] + place + 100 for row, place in trainable(masks)]
    assert layout.targets.tolist() == expected
    assert layout.input_ids.flatten()[layout.predictors].tolist() == [token - 1 for token in expected]
    assert (layout.positions + 100).tolist() == expected


@given(masks=ROWS, packing=st.booleans())
def test_only_what_a_trainable_token_depends_on_is_fed(masks: Rows, packing: bool) -> None:
    layout = lay_out(table_of(masks), "cpu", packing=packing)
    if layout is None:
        return
    last = {row: place for row, place in trainable(masks)}
    assert layout.fed == sum(last.values()) == np.count_nonzero(layout.input_ids)
    if packing:
        assert layout.position_ids is not None
        assert layout.input_ids.shape == (1, layout.fed)
        assert layout.position_ids[0].tolist() == [place for length in last.values() for place in range(length)]
    else:
        assert layout.position_ids is None
        assert layout.input_ids.shape == (len(last), max(last.values()))
        starts = np.cumsum([0, *map(len, masks)])
        for line, (row, length) in zip(layout.input_ids.tolist(), last.items(), strict=True):
            assert line[:length] == [starts[row] + place + 100 for place in range(length)]


@pytest.mark.parametrize("how", [PADDED, PACKED, SHARED])
@pytest.mark.parametrize("masks", [[[]], [[True]], [[False, False], []]])
def test_nothing_trainable_is_no_layout(masks: Rows, how: dict[str, bool]) -> None:
    assert lay_out(table_of(masks), "cpu", **how) is None


def test_ids_of_any_width_reach_the_model_as_int64() -> None:
    table = table_of([[False, True]])
    narrow = table["tokens"]
    columns = {**table.columns, "tokens": Column(narrow.spec, narrow.values.astype(np.int32), narrow.offsets)}
    layout = lay_out(Table(table.ids, table.groups, columns), "cpu", **PADDED)
    assert layout is not None and layout.input_ids.dtype == layout.targets.dtype == torch.int64


@st.composite
def groups_of_rows(draw: st.DrawFn) -> Table:
    """Rows in any order, of groups that begin alike more or less, with any mask."""
    tokens, masks, groups = [], [], []
    for group in range(draw(st.integers(1, 4))):
        prompt = draw(st.lists(st.integers(1, 9), max_size=5))
        for _ in range(draw(st.integers(0, 4))):
            rest = draw(st.lists(st.integers(1, 3), max_size=5))
            held = draw(st.integers(0, len(prompt)))
            late = draw(st.lists(st.booleans(), min_size=len(rest), max_size=len(rest)))
            tokens.append(prompt + rest)
            masks.append([place >= held and draw(st.booleans()) for place in range(len(prompt))] + late)
            groups.append(group)
    order = draw(st.permutations(range(len(tokens))))
    return grouped([tokens[i] for i in order], [masks[i] for i in order], [groups[i] for i in order])


def seen_from(layout: Layout, slot: int) -> list[int]:
    """Tokens that the token in a slot attends to, itself the last."""
    assert layout.seen_until is not None and layout.position_ids is not None
    line = slot // layout.input_ids.shape[1]
    start = line * layout.input_ids.shape[1]
    seen = [other for other in range(start, slot + 1) if slot < layout.seen_until.flatten()[other]]
    assert layout.position_ids.flatten()[seen].tolist() == list(range(len(seen))), "places count from the row's start"
    return [int(token) for token in layout.input_ids.flatten()[seen]]


@given(table=groups_of_rows())
def test_every_trainable_token_sees_its_row_and_nothing_else(table: Table) -> None:
    layout = lay_out(table, "cpu", **SHARED)
    plain = lay_out(table, "cpu", **PADDED)
    assert (layout is None) == (plain is None)
    if layout is None or plain is None or layout.seen_until is None:
        return
    assert layout.targets.tolist() == plain.targets.tolist()
    assert layout.fed == plain.fed, "shared tokens count in each of their rows"
    masks = [table["loss_mask"][row].tolist() for row in range(len(table))]
    before = [table["tokens"][row].tolist()[:place] for row, place in trainable(masks)]
    assert [seen_from(layout, slot) for slot in layout.predictors.tolist()] == before


def test_a_group_is_its_beginning_once_and_then_each_row() -> None:
    asked, answered = [False] * 3, [True] * 2
    tokens = [[1, 2, 3, 4, 5], [1, 2, 3, 6, 7], [1, 2, 3, 8, 9], [1, 2, 3, 4, 5]]
    layout = lay_out(grouped(tokens, [asked + answered] * 4, [0, 0, 0, 1]), "cpu", **SHARED)
    assert layout is not None and layout.seen_until is not None and layout.position_ids is not None
    assert layout.input_ids.tolist() == [[1, 2, 3, 4, 6, 8], [1, 2, 3, 4, 0, 0]], "rows of other groups share nothing"
    assert layout.position_ids.tolist() == [[0, 1, 2, 3, 3, 3], [0, 1, 2, 3, 0, 0]]
    assert layout.seen_until.tolist() == [[6, 6, 6, 4, 5, 6], [10, 10, 10, 10, 0, 0]]
    assert layout.predictors.tolist() == [2, 3, 2, 4, 2, 5, 8, 9]


def test_a_beginning_ends_before_the_first_trainable_token() -> None:
    tokens = [[1, 2, 3, 4], [1, 2, 3, 5]]
    layout = lay_out(
        grouped(tokens, [[False, False, True, True], [False, False, False, True]], [0, 0]), "cpu", **SHARED
    )
    assert layout is not None and layout.input_ids.tolist() == [[1, 2, 3, 3]]


def test_short_sequences_share_a_line() -> None:
    asked = [False] * 2
    tokens = [[1, 2, 3, 4, 5], [1, 2, 6, 7, 8], [1, 2, 3], [4, 5, 6], [5, 6, 7]]
    masks = [asked + [True] * 3] * 2 + [[*asked, True]] * 3
    layout = lay_out(grouped(tokens, masks, [0, 0, 1, 2, 3]), "cpu", **SHARED)
    assert layout is not None and layout.input_ids.tolist() == [[1, 2, 3, 4, 6, 7], [1, 2, 4, 5, 5, 6]]


def test_rows_that_share_nothing_are_padded() -> None:
    layout = lay_out(grouped([[1, 2], [3, 4]], [[False, True]] * 2, [0, 0]), "cpu", **SHARED)
    assert layout is not None and layout.seen_until is layout.position_ids is None

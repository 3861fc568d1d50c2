import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relax_core.api.columns import Column, Table
from relax_core.dataflow.columns import LOSS_MASK, TOKENS
from relax_core.trainers.torch.layout import lay_out

Rows = list[list[bool]]
ROWS = st.lists(st.lists(st.booleans(), max_size=8), min_size=1, max_size=6)


def table_of(masks: Rows) -> Table:
    starts = np.cumsum([0, *map(len, masks)])
    tokens = [np.arange(start, start + len(mask)) + 100 for start, mask in zip(starts, masks, strict=False)]
    columns = {"tokens": Column.of(TOKENS, tokens), "loss_mask": Column.of(LOSS_MASK, masks)}
    return Table(np.arange(len(masks)), np.zeros(len(masks), np.int64), columns)


def trainable(masks: Rows) -> list[tuple[int, int]]:
    return [(row, place) for row, mask in enumerate(masks) for place in range(1, len(mask)) if mask[place]]


@given(masks=ROWS, packing=st.booleans())
def test_every_trainable_token_is_predicted_from_the_one_before_it(masks: Rows, packing: bool) -> None:
    layout = lay_out(table_of(masks), packing, "cpu")
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
    layout = lay_out(table_of(masks), packing, "cpu")
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


@pytest.mark.parametrize("masks", [[[]], [[True]], [[False, False], []]])
def test_nothing_trainable_is_no_layout(masks: Rows) -> None:
    assert lay_out(table_of(masks), False, "cpu") is None


def test_ids_of_any_width_reach_the_model_as_int64() -> None:
    table = table_of([[False, True]])
    narrow = table["tokens"]
    columns = {**table.columns, "tokens": Column(narrow.spec, narrow.values.astype(np.int32), narrow.offsets)}
    layout = lay_out(Table(table.ids, table.groups, columns), False, "cpu")
    assert layout is not None and layout.input_ids.dtype == layout.targets.dtype == torch.int64

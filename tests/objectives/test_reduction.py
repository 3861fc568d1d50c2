from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relax_core.api.tokens import Tokens
from relax_core.objectives.reduction import UNITS, Reduction, reduce
from relax_core.testing.algorithm import make_tokens, select_rows

CONSTANT = 7.0
number = st.floats(min_value=-10, max_value=10)


@dataclass
class Update:
    """Rows as (group, [(value, mask), ...])."""

    rows: list[tuple[int, list[tuple[float, int]]]]

    @property
    def tokens(self) -> Tokens:
        rows = [{"logprobs": [v for v, _ in row], "mask": [float(m) for _, m in row]} for _, row in self.rows]
        return make_tokens(rows, [group for group, _ in self.rows], dtype=torch.float64)


token = st.tuples(number, st.integers(0, 1))
row = st.tuples(st.integers(0, 2), st.lists(token, min_size=1, max_size=4))
updates = st.builds(Update, st.lists(row, min_size=1, max_size=7))


def textbook(update: Update, mode: Reduction) -> tuple[float, float]:
    """Numerator and denominator, by plain loops."""
    numerator = denominator = 0.0
    for group, row in update.rows:
        total = sum(v for v, m in row if m)
        left = sum(m for _, m in row)
        group_length = sum(len(other) for g, other in update.rows if g == group)
        if mode == "token_mean":
            numerator, denominator = numerator + total, denominator + left
        elif mode == "group_token_mean":
            numerator, denominator = numerator + total / group_length, denominator + left / group_length
        elif left:
            numerator += total / (left if mode == "row_mean" else CONSTANT)
            denominator += 1
    return numerator, denominator


def sums(parts: list[Tokens], mode: Reduction, masked: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    constant = CONSTANT if mode == "row_sum_constant" else None
    losses = [reduce(part.logprobs, part, mode, part["mask"] if masked else None, constant) for part in parts]
    assert {loss.unit for loss in losses} == {UNITS[mode]}
    numerator = torch.stack([(loss.value * loss.weight).sum() for loss in losses]).sum()
    return numerator, torch.stack([loss.weight.sum() for loss in losses]).sum()


@pytest.mark.parametrize("mode", UNITS)
@given(update=updates)
def test_equals_the_textbook(mode: Reduction, update: Update) -> None:
    numerator, denominator = sums([update.tokens], mode)
    assert (numerator.item(), denominator.item()) == pytest.approx(textbook(update, mode), abs=1e-9)


@pytest.mark.parametrize("mode", UNITS)
@given(update=updates, owners=st.lists(st.integers(0, 2), min_size=7, max_size=7))
def test_does_not_depend_on_micro_batches(mode: Reduction, update: Update, owners: list[int]) -> None:
    tokens = update.tokens
    parts = [[place for place in range(tokens.rows) if owners[place] == part] for part in range(3)]
    whole, split = sums([tokens], mode), sums([select_rows(tokens, part) for part in parts], mode)
    assert torch.allclose(whole[0], split[0])
    assert torch.allclose(whole[1], split[1])
    ours, theirs = (torch.autograd.grad(numerator, [tokens.logprobs])[0] for numerator in (whole[0], split[0]))
    assert torch.allclose(ours, theirs)


@pytest.mark.parametrize("mode", ["token_mean", "row_mean", "group_token_mean"])
@given(update=updates, value=number)
def test_a_constant_reduces_to_itself(mode: Reduction, update: Update, value: float) -> None:
    constant = Update([(group, [(value, m) for _, m in row]) for group, row in update.rows])
    numerator, denominator = sums([constant.tokens], mode)
    assert numerator.item() == pytest.approx(value * denominator.item())


@given(update=updates)
def test_weights_of_a_group_add_up_to_one(update: Update) -> None:
    _, denominator = sums([update.tokens], "group_token_mean", masked=False)
    assert denominator.item() == pytest.approx(len({group for group, _ in update.rows}))


@pytest.mark.parametrize("mode", ["token_mean", "row_mean", "row_sum_constant"])
@given(update=updates, excluded=st.integers(0, 6))
def test_a_masked_row_leaves_no_trace(mode: Reduction, update: Update, excluded: int) -> None:
    place = excluded % len(update.rows)
    group, row = update.rows[place]
    hidden = [*update.rows]
    hidden[place] = (group, [(v, 0) for v, _ in row])
    absent = [other for other in update.rows if other is not update.rows[place]]
    with_mask = textbook(Update(hidden), mode)
    masked = sums([Update(hidden).tokens], mode)
    assert (masked[0].item(), masked[1].item()) == pytest.approx(with_mask, abs=1e-9)
    if absent:
        without = sums([Update(absent).tokens], mode)
        assert torch.allclose(masked[0], without[0])
        assert torch.allclose(masked[1], without[1])


@pytest.mark.parametrize("mode", UNITS)
def test_an_empty_micro_batch_weighs_nothing(mode: Reduction) -> None:
    tokens = select_rows(Update([(0, [(1.0, 1)])]).tokens, [])
    numerator, denominator = sums([tokens], mode)
    assert numerator.item() == denominator.item() == 0


@pytest.mark.parametrize("mode", UNITS)
def test_a_mask_hides_no_nan(mode: Reduction) -> None:
    numerator, _ = sums([Update([(0, [(float("nan"), 0), (1.0, 1)])]).tokens], mode)
    assert numerator.isnan()


@pytest.mark.parametrize("mode", UNITS)
def test_the_constant_belongs_to_one_mode(mode: Reduction) -> None:
    tokens = Update([(0, [(1.0, 1)])]).tokens
    with pytest.raises(ValueError, match="constant length"):
        reduce(tokens.logprobs, tokens, mode, constant=None if mode == "row_sum_constant" else 3.0)

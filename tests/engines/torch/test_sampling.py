"""Draws have the distribution that was asked for, and depend on nothing else."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.api.engine import SamplingParameters
from relax_core.engines.torch import sampling
from relax_core.engines.torch.sampling import draw, uniform_numbers

logit_rows = st.lists(
    st.lists(st.floats(-30, 30, width=32) | st.just(-np.inf), min_size=6, max_size=6).filter(
        lambda row: max(row) > -np.inf
    ),
    min_size=1,
    max_size=5,
)
parameters = st.builds(
    SamplingParameters,
    max_new_tokens=st.just(1),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_p=st.sampled_from([0.0531, 0.4703, 0.9017, 1.0]),  # no sum of simple fractions: there rounding decides
    top_k=st.integers(0, 8),
)


def plain(**changes: float) -> SamplingParameters:
    return SamplingParameters(max_new_tokens=1, **changes)


def distribution(logits: np.ndarray, asked: SamplingParameters) -> dict[int, float]:
    """Log-probabilities of the ids that survive, written out."""
    values = (logits / np.float32(asked.temperature or 1.0)).astype(np.float64)
    order = sorted(np.flatnonzero(values > -np.inf).tolist(), key=lambda index: (-values[index], index))
    if asked.temperature > 0:
        order = order[: asked.top_k or None]
        mass = np.exp(values[order] - values[order].max())
        mass /= mass.sum()
        if asked.top_p < 1:
            order = order[: int((np.cumsum(mass) < asked.top_p).sum()) + 1]
    total = np.log(np.exp(values[order] - values[order].max()).sum()) + values[order].max()
    return {index: values[index] - total for index in order}


@settings(max_examples=300, deadline=None)
@given(rows=logit_rows, asked=st.lists(parameters, min_size=5, max_size=5), seed=st.integers(0, 2**64))
def test_a_draw_is_as_defined(rows: list[list[float]], asked: list[SamplingParameters], seed: int) -> None:
    logits = torch.tensor(rows)
    some = asked[: len(rows)]
    drawn = draw(logits, some, uniform_numbers([seed] * len(rows), list(range(len(rows)))))
    for index, each in enumerate(some):
        expected = distribution(logits[index].numpy(), each)
        token_id = drawn.token_ids[index]
        assert token_id in expected, "a token without probability is never drawn"
        assert drawn.logprobs[index] == pytest.approx(expected[token_id], abs=1e-5, rel=1e-6)
        support = drawn.support[index]
        if each.temperature > 0 and (each.top_k or each.top_p < 1):
            assert support is not None
            assert set(support.tolist()) == set(expected)
        else:
            assert support is None
        if each.temperature == 0:
            assert token_id == int(np.argmax(logits[index].numpy()))


@settings(max_examples=100, deadline=None)
@given(rows=logit_rows, asked=st.lists(parameters, min_size=5, max_size=5), seed=st.integers(0, 2**63))
def test_rows_do_not_meet(rows: list[list[float]], asked: list[SamplingParameters], seed: int) -> None:
    logits = torch.tensor(rows)
    uniforms = uniform_numbers([seed] * len(rows), list(range(len(rows))))
    together = draw(logits, asked[: len(rows)], uniforms)
    for index in range(len(rows)):
        alone = draw(logits[index : index + 1], [asked[index]], uniforms[index : index + 1])
        assert alone.token_ids == [together.token_ids[index]]
        assert alone.logprobs == [pytest.approx(together.logprobs[index], abs=1e-6)]


def test_many_rows_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(11, 7, generator=torch.Generator().manual_seed(0))
    asked = [plain(top_k=index % 3) for index in range(11)]
    uniforms = uniform_numbers(list(range(11)), [0] * 11)
    whole = draw(logits, asked, uniforms)
    monkeypatch.setattr(sampling, "LOGITS_AT_ONCE", 20)
    parts = draw(logits, asked, uniforms)
    assert parts.token_ids == whole.token_ids
    assert len(parts.support) == len(parts.logprobs) == 11


@pytest.mark.parametrize("asked", [plain(), plain(temperature=0.5), plain(top_k=3), plain(top_p=0.8)], ids=str)
def test_frequencies_are_the_probabilities(asked: SamplingParameters) -> None:
    count = 40_000
    logits = torch.tensor([1.0, 0.2, -1.0, 2.0, 0.2])
    uniforms = uniform_numbers(list(range(count)), [3] * count)
    drawn = draw(logits.expand(count, -1), [asked] * count, uniforms)
    frequencies = np.bincount(drawn.token_ids, minlength=5) / count
    expected = np.zeros(5)
    for index, logprob in distribution(logits.numpy(), asked).items():
        expected[index] = np.exp(logprob)
    assert np.abs(frequencies - expected).max() < 4 * 0.5 / np.sqrt(count)


def test_ties_go_to_the_lower_id() -> None:
    drawn = draw(torch.zeros(1, 300), [plain(top_k=4)], np.array([0.999]))
    assert drawn.support[0].tolist() == [0, 1, 2, 3]
    assert draw(torch.zeros(1, 300), [plain(temperature=0.0)], np.array([0.999])).token_ids == [0]


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-53])
def test_the_ends_of_the_unit_interval_draw_tokens_with_probability(uniform: float) -> None:
    logits = torch.tensor([[-np.inf, 0.0, -np.inf, 1.0, -np.inf]])
    for asked in (plain(), plain(top_k=4)):
        drawn = draw(logits, [asked], np.array([uniform]))
        assert drawn.token_ids[0] in (1, 3)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("asked", [plain(), plain(temperature=0.0), plain(top_k=2), plain(top_p=0.5)], ids=str)
def test_logits_that_are_not_finite_show(poison: float, asked: SamplingParameters) -> None:
    drawn = draw(torch.tensor([[0.0, poison, 1.0], [0.0, 1.0, 2.0]]), [asked, asked], np.array([0.3, 0.3]))
    assert not np.isfinite(drawn.logprobs[0])
    assert np.isfinite(drawn.logprobs[1])


def test_uniform_numbers_are_a_function_of_seed_and_place() -> None:
    seeds = [0, 1, 2**63 - 1, 2**64 + 1, -1]
    numbers = uniform_numbers(seeds, [5] * 5)
    assert numbers[1] == numbers[3], "seeds count modulo 2**64"
    assert uniform_numbers([2**63 - 1], [5])[0] == numbers[2]
    assert (
        len({*uniform_numbers([7] * 1000, list(range(1000))), *uniform_numbers(list(range(1000)), [7] * 1000)}) > 1990
    )


def test_uniform_numbers_are_uniform_and_independent() -> None:
    numbers = uniform_numbers(np.repeat(np.arange(200), 200).tolist(), list(range(200)) * 200).reshape(200, 200)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert np.abs(np.histogram(numbers, 10, (0, 1))[0] / 40_000 - 0.1).max() < 0.006
    for axis in (0, 1):
        first, second = np.split(np.moveaxis(numbers, axis, 0), [199])[0], np.moveaxis(numbers, axis, 0)[1:]
        assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.02

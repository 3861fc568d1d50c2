"""Tensors arrive in shared memory as they were sent, and the memory is used again."""

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relax_core.weights.shared_memory import SharedWeights, anonymous_file

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.bool)
SHAPES = st.lists(st.integers(0, 7), max_size=3).map(tuple)
TENSORS = st.dictionaries(st.text(max_size=3), st.tuples(SHAPES, st.sampled_from(DTYPES)), max_size=4)


@pytest.fixture
def ends() -> Iterator[tuple[SharedWeights, SharedWeights]]:
    descriptor = anonymous_file()
    ends = SharedWeights(descriptor), SharedWeights(os.dup(descriptor))
    yield ends
    for end in ends:
        end.close()


@given(st.lists(st.lists(TENSORS, max_size=3), min_size=1, max_size=3))
def test_publications_of_any_size_arrive_one_after_the_other(publications: list[list[dict[str, tuple]]]) -> None:
    descriptor = anonymous_file()
    sender, receiver = SharedWeights(descriptor), SharedWeights(os.dup(descriptor))
    for publication in publications:
        buckets = [
            {name: (torch.rand(shape) * 100).to(dtype) for name, (shape, dtype) in bucket.items()}
            for bucket in publication
        ]
        for sent, arrived in zip(buckets, receiver.read(sender.write(buckets)), strict=True):
            assert sent.keys() == arrived.keys()
            for name, tensor in sent.items():
                assert arrived[name].dtype == tensor.dtype
                assert arrived[name].equal(tensor)
    sender.close()
    receiver.close()


def test_strided_tensors_are_written_in_order(ends: tuple[SharedWeights, SharedWeights]) -> None:
    sender, receiver = ends
    tensor = torch.arange(12.0).view(3, 4).t()
    (bucket,) = receiver.read(sender.write([{"a": tensor}]))
    assert bucket["a"].equal(tensor)
    assert bucket["a"].is_contiguous()


def test_memory_is_shared_and_used_again(ends: tuple[SharedWeights, SharedWeights]) -> None:
    sender, receiver = ends
    (first,) = receiver.read(sender.write([{"a": torch.zeros(1000)}]))
    size = os.fstat(sender.descriptor).st_size
    (second,) = receiver.read(sender.write([{"a": torch.ones(1000)}]))
    assert os.fstat(sender.descriptor).st_size == size
    assert second["a"].data_ptr() == first["a"].data_ptr()
    assert first["a"].equal(torch.ones(1000)), "values were copied on their way"

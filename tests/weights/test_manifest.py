import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Manifest
from relax_core.weights.manifest import buckets, checksum, describe, verify_bucket

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_checksum_is_that_of_the_bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.arange(6)[: torch.Size(shape).numel()].reshape(shape).to(dtype)
    assert checksum(tensor) == xxhash.xxh3_64_intdigest(bytes(tensor.untyped_storage())[: tensor.nbytes])


def test_checksum_follows_elements_not_memory() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    assert checksum(tensor.T) == checksum(tensor.T.contiguous()) != checksum(tensor)
    assert checksum(tensor.requires_grad_()) == checksum(tensor.detach())


@given(sizes=st.lists(st.integers(0, 12), max_size=10), limit=st.integers(1, 64))
def test_buckets_hold_everything_once_and_in_order(sizes: list[int], limit: int) -> None:
    tensors = {f"t{index}": torch.full((size,), float(index)) for index, size in enumerate(sizes)}
    parts = list(buckets(tensors, limit))
    assert [name for part in parts for name in part] == list(tensors)
    assert all(part for part in parts)
    assert all(len(part) == 1 or sum(tensor.nbytes for tensor in part.values()) <= limit for part in parts)
    for part in parts:
        verify_bucket(Manifest(0, describe(tensors)), part)


def test_buckets_share_no_memory_with_the_sender() -> None:
    tensor = torch.zeros(3)
    (part,) = buckets({"a": tensor})
    tensor += 1
    assert (part["a"] == 0).all()


@pytest.mark.parametrize(
    ("bucket", "message"),
    [
        ({"b": torch.zeros(2, 2)}, "version 4: b is not in the manifest"),
        ({"a": torch.zeros(4)}, r"version 4: a arrived as float32\[4\], the manifest says float32\[2, 2\]"),
        ({"a": torch.zeros(2, 2).half()}, r"a arrived as float16\[2, 2\], the manifest says float32\[2, 2\]"),
        ({"a": torch.tensor([[0.0, 0.0], [0.0, 1e-45]])}, "a arrived with other bytes than were sent"),
    ],
)
def test_what_differs_is_named(bucket: dict[str, torch.Tensor], message: str) -> None:
    manifest = Manifest(4, describe({"a": torch.zeros(2, 2)}))
    with pytest.raises(WeightSyncError, match=message):
        verify_bucket(manifest, bucket)

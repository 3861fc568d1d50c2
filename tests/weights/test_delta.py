"""Deltas are exact in every dtype, smaller than what they stand for, and only for those who have the version before."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Manifest, Publication
from relax_core.weights.delta import BITS, PLACES, DeltaEncoder, applied, composed, differences
from relax_core.weights.inventory import inventory_of
from relax_core.weights.manifest import buckets, bytes_in, describe

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int8, torch.bool)
CHANGES = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 59), st.integers(-100, 100)), max_size=30)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and torch.equal(
        left.contiguous().view(-1).view(torch.uint8), right.contiguous().view(-1).view(torch.uint8)
    )


def publication(tensors: dict[str, torch.Tensor], version: int, max_bytes: int = 300) -> Publication:
    return Publication(Manifest(version, describe(tensors)), buckets(tensors, max_bytes))


@given(dtype=st.sampled_from(DTYPES), rounds=st.lists(CHANGES, min_size=1, max_size=4))
def test_whatever_changes_arrives_bit_by_bit(dtype: torch.dtype, rounds: list[list[tuple[str, int, int]]]) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {name: (torch.randn(6, 10, generator=generator) * 10).to(dtype) for name in "abc"}
    receiver = {name: tensor.clone() for name, tensor in tensors.items()}
    inventory, encoder = inventory_of(receiver), DeltaEncoder()
    kept: list[Publication] = []
    for version, changes in enumerate([[], *rounds], start=1):
        for name, place, value in changes:
            tensors[name].view(-1)[place] = value
        sent = encoder.encode(publication(tensors, version), whole=version == 1)
        arrived = inventory.verified(sent.manifest, sent.buckets, receiver)
        for name, tensor in arrived.items():
            receiver[name].copy_(tensor)
        inventory = inventory.after(sent.manifest)
        encoder.acknowledged()
        kept = [sent] if sent.manifest.kind == "full" else [*kept, sent]
        assert all(same_bits(receiver[name], tensors[name]) for name in tensors)
        assert bytes_in(sent) <= bytes_in(publication(tensors, version))
    whole = composed(kept)
    assert whole is not None and whole.manifest.kind == "full"
    late = {name: tensor for bucket in whole.buckets for name, tensor in bucket.items()}
    assert all(same_bits(late[name], tensors[name]) for name in tensors)


def test_signs_of_zero_and_the_bits_of_not_a_number_arrive() -> None:
    before = {"a": torch.tensor([0.0, 1.0, float("nan"), 1.0, 1.0, 1.0, 1.0, 1.0])}
    after = {"a": before["a"].clone()}
    after["a"][0] = -0.0
    after["a"].view(torch.int32)[2] += 1
    change = differences(after, before)
    assert change["a" + PLACES].tolist() == [0, 2]
    assert same_bits(applied(change, before)["a"], after["a"])


def test_a_tensor_of_which_most_changed_is_sent_whole() -> None:
    before = {"few": torch.zeros(100), "most": torch.zeros(100), "none": torch.zeros(100)}
    after = {"few": torch.zeros(100), "most": torch.ones(100), "none": torch.zeros(100)}
    after["few"][3] = 1.0
    assert differences(after, before).keys() == {"few" + PLACES, "few" + BITS, "most"}


def test_tied_names_share_what_is_sent() -> None:
    embedding = torch.zeros(100)
    tensors = {"embed": embedding, "norm": torch.zeros(3), "head": embedding}
    encoder = DeltaEncoder()
    encoder.encode(publication(tensors, 1, max_bytes=10_000), whole=True)
    encoder.acknowledged()
    embedding[5] = 1.0
    delta = encoder.encode(publication(tensors, 2, max_bytes=10_000), whole=False)
    assert bytes_in(delta) == 4 + 4, "one place and one value"
    (bucket,) = delta.buckets
    assert bucket.keys() == {f"{name}{end}" for name in ("embed", "head") for end in (PLACES, BITS)}


def test_a_receiver_without_the_base_gets_everything() -> None:
    tensors = {"a": torch.zeros(100)}
    encoder = DeltaEncoder()
    for version, whole in ((1, True), (2, False), (3, True), (4, False)):
        tensors["a"][version] = 1.0
        sent = encoder.encode(publication(tensors, version), whole)
        assert sent.manifest.kind == ("full" if whole else "delta")
        encoder.acknowledged()


def test_what_was_not_acknowledged_is_no_base() -> None:
    tensors = {"a": torch.zeros(100)}
    encoder = DeltaEncoder()
    encoder.encode(publication(tensors, 1), whole=True)
    encoder.acknowledged()
    for version in (2, 3):
        tensors["a"][version] = 1.0
        sent = encoder.encode(publication(tensors, version), whole=False)
    assert sent.manifest.base == 1
    assert applied(next(iter(sent.buckets)), {"a": torch.zeros(100)})["a"].sum() == 2


def test_deltas_as_large_as_everything_are_everything() -> None:
    tensors = {"a": torch.zeros(100)}
    encoder = DeltaEncoder()
    kinds = []
    for version in range(1, 9):
        tensors["a"][:20] += 1.0
        kinds.append(encoder.encode(publication(tensors, version), whole=version == 1).manifest.kind)
        encoder.acknowledged()
    assert kinds == ["full", "delta", "delta", "full", "delta", "delta", "full", "delta"]


@pytest.mark.parametrize("fault", ["base", "places", "bits", "nothing", "value"])
def test_a_broken_delta_is_refused(fault: str) -> None:
    tensors = {"a": torch.zeros(100)}
    encoder, inventory = DeltaEncoder(), inventory_of(tensors)
    encoder.encode(publication(tensors, 0), whole=True)
    encoder.acknowledged()
    after = {"a": torch.zeros(100)}
    after["a"][7] = 1.0
    sent = encoder.encode(publication(after, 1), whole=False)
    (bucket,) = sent.buckets
    manifest, broken = sent.manifest, dict(bucket)
    if fault == "base":
        manifest = replace(manifest, base=5)
    elif fault == "places":
        broken["a" + PLACES] = torch.tensor([100], dtype=torch.int32)
    elif fault == "bits":
        del broken["a" + BITS]
    elif fault == "nothing":
        broken = {}
    else:
        broken["a" + PLACES] = torch.tensor([8], dtype=torch.int32)
    with pytest.raises(WeightSyncError, match="5" if fault == "base" else "a"):
        inventory.verified(manifest, [broken], tensors)
    assert not tensors["a"].any(), "a refused delta changed the base"

"""A publication is checked against what a model holds before anything is taken over."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Manifest, Publication
from relax_core.testing.models import tiny_model
from relax_core.testing.publications import perturbed, publication_of, with_fault
from relax_core.weights.inventory import Inventory, inventory_of
from relax_core.weights.manifest import describe


@pytest.fixture(scope="module")
def own(tiny_model_path: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = perturbed(tiny_model_path, 0).state_dict()
    return tensors


@pytest.fixture(scope="module")
def inventory(own: dict[str, torch.Tensor]) -> Inventory:
    return inventory_of(own)


def publish(tensors: dict[str, torch.Tensor], version: int = 1) -> Publication:
    return Publication(Manifest(version, describe(tensors)), [tensors])


def test_a_publication_is_taken_whole(inventory: Inventory, tiny_model_path: Path) -> None:
    same, other = publication_of(perturbed(tiny_model_path, 0), 1), publication_of(perturbed(tiny_model_path, 1), 2)
    assert inventory.changed(same.manifest) == 0
    assert inventory.changed(other.manifest) == len(inventory.tensors)
    assert inventory.verified(other.manifest, other.buckets).keys() == inventory.tensors.keys()
    assert inventory.after(other.manifest).changed(other.manifest) == 0


def test_only_different_tensors_count(inventory: Inventory, own: dict[str, torch.Tensor]) -> None:
    sent = publish({**own, "model.norm.weight": own["model.norm.weight"] + 1})
    assert inventory.changed(sent.manifest) == 1
    assert inventory.after(sent.manifest).changed(sent.manifest) == 0


def test_tied_tensors_are_found(inventory: Inventory, tmp_path: Path) -> None:
    assert inventory.tied == {"lm_head.weight": "model.embed_tokens.weight"}
    untied = perturbed(tiny_model(tmp_path, tie_word_embeddings=False), 0)
    assert inventory_of(untied.state_dict()).tied == {}


def test_versions_grow(inventory: Inventory, own: dict[str, torch.Tensor]) -> None:
    third = publish(own, 3)
    later = inventory.after(third.manifest)
    for version in (2, 3):
        with pytest.raises(WeightSyncError, match=f"version {version} does not come after version 3"):
            later.verified(publish(own, version).manifest, third.buckets)
    assert later.verified(publish(own, 4).manifest, third.buckets)


def test_another_dtype_than_the_model_holds_is_refused(inventory: Inventory, own: dict[str, torch.Tensor]) -> None:
    sent = publish({name: tensor.bfloat16() for name, tensor in own.items()})
    with pytest.raises(WeightSyncError, match=r"model\.embed_tokens\.weight: published as bfloat16.*has float32"):
        inventory.verified(sent.manifest, sent.buckets)


@pytest.mark.parametrize("fault", ["checksum", "missing", "unknown", "shape", "not sent"])
def test_a_fault_is_named(inventory: Inventory, tiny_model_path: Path, fault: str) -> None:
    publication = with_fault(publication_of(perturbed(tiny_model_path, 1), 1), "model.norm.weight", fault)
    with pytest.raises(WeightSyncError, match=r"model\.norm\.weight"):
        inventory.verified(publication.manifest, publication.buckets)


def test_a_publication_without_the_tied_name_is_refused(inventory: Inventory, own: dict[str, torch.Tensor]) -> None:
    sent = publish({name: tensor for name, tensor in own.items() if name != "lm_head.weight"})
    with pytest.raises(WeightSyncError, match=r"lm_head\.weight"):
        inventory.verified(sent.manifest, sent.buckets)


def test_tied_tensors_with_two_values_are_refused(inventory: Inventory, own: dict[str, torch.Tensor]) -> None:
    sent = publish({**own, "lm_head.weight": own["lm_head.weight"] + 1})
    with pytest.raises(WeightSyncError, match=r"lm_head\.weight: tied to model\.embed_tokens\.weight"):
        inventory.verified(sent.manifest, sent.buckets)


@pytest.mark.parametrize("kind", ["adapter", "delta"])
def test_other_kinds_are_refused(inventory: Inventory, own: dict[str, torch.Tensor], kind: str) -> None:
    manifest = replace(publish(own).manifest, kind=kind, base=0)
    with pytest.raises(WeightSyncError, match=f"kind '{kind}' is not taken"):
        inventory.verified(manifest, [own])

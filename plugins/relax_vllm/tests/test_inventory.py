"""What a publication must be is known from the model's folder alone; needs no vLLM."""

from dataclasses import replace
from pathlib import Path

import pytest
from relax_vllm.inventory import take_inventory

from relax_core.api.context import ModelSource
from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Publication
from relax_core.testing.models import tiny_model
from relax_core.testing.publications import perturbed, publication_of, with_fault
from relax_core.weights.manifest import checksum


def test_a_publication_is_taken_whole(vllm_model_path: Path) -> None:
    inventory = take_inventory(ModelSource(vllm_model_path))
    own, other = publication_of(perturbed(vllm_model_path, 0), 1), publication_of(perturbed(vllm_model_path, 1), 2)
    assert inventory.changed(own.manifest) == 0
    assert inventory.changed(other.manifest) == len(inventory.tensors)
    assert inventory.verified(other.manifest, other.buckets).keys() == inventory.tensors.keys()
    assert inventory.after(other.manifest).changed(other.manifest) == 0


def test_tied_tensors_are_found(vllm_model_path: Path, tmp_path: Path) -> None:
    assert take_inventory(ModelSource(vllm_model_path)).tied == {"lm_head.weight": "model.embed_tokens.weight"}
    assert take_inventory(ModelSource(tiny_model(tmp_path, tie_word_embeddings=False))).tied == {}


def test_the_dtype_is_that_of_the_run(vllm_model_path: Path) -> None:
    inventory = take_inventory(ModelSource(vllm_model_path, dtype="bfloat16"))
    assert {entry.dtype for entry in inventory.tensors.values()} == {"bfloat16"}
    publication = publication_of(perturbed(vllm_model_path, 1), 1)
    with pytest.raises(WeightSyncError, match=r"model\.embed_tokens\.weight: published as float32.*has bfloat16"):
        inventory.verified(publication.manifest, publication.buckets)


@pytest.mark.parametrize("fault", ["checksum", "missing", "unknown", "shape", "not sent"])
def test_a_fault_is_named(vllm_model_path: Path, fault: str) -> None:
    publication = with_fault(publication_of(perturbed(vllm_model_path, 1), 1), "model.norm.weight", fault)
    with pytest.raises(WeightSyncError, match=r"model\.norm\.weight"):
        take_inventory(ModelSource(vllm_model_path)).verified(publication.manifest, publication.buckets)


def test_tied_tensors_with_two_values_are_refused(vllm_model_path: Path) -> None:
    sound = publication_of(perturbed(vllm_model_path, 1), 1)
    tensors = {name: tensor for bucket in sound.buckets for name, tensor in bucket.items()}
    tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1
    entry = replace(sound.manifest.tensors["lm_head.weight"], checksum=checksum(tensors["lm_head.weight"]))
    manifest = replace(sound.manifest, tensors={**sound.manifest.tensors, "lm_head.weight": entry})
    untied = Publication(manifest, [tensors])
    with pytest.raises(WeightSyncError, match=r"lm_head\.weight: tied to model\.embed_tokens\.weight"):
        take_inventory(ModelSource(vllm_model_path)).verified(untied.manifest, untied.buckets)


def test_other_kinds_are_refused(vllm_model_path: Path) -> None:
    publication = publication_of(perturbed(vllm_model_path, 1), 1)
    with pytest.raises(WeightSyncError, match="'adapter'"):
        take_inventory(ModelSource(vllm_model_path)).verified(replace(publication.manifest, kind="adapter"), [])

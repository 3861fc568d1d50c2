"""A publication is checked against the model before anything is copied."""

from pathlib import Path

import pytest
import torch

from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Manifest
from relax_core.engines.torch.weights import copy_weights, release_weights, restore_weights, verified
from relax_core.testing.publications import perturbed
from relax_core.weights.manifest import describe


def test_kinds_that_the_engine_cannot_apply_are_refused(tiny_model_path: Path) -> None:
    own = perturbed(tiny_model_path, 0).state_dict()
    manifest = Manifest(1, describe(own), kind="delta", base=0)
    with pytest.raises(WeightSyncError, match="'delta'"):
        verified(manifest, [own], own)


def test_another_dtype_than_the_model_holds_is_refused(tiny_model_path: Path) -> None:
    network = perturbed(tiny_model_path, 0)
    sent = {name: tensor.bfloat16() for name, tensor in network.state_dict().items()}
    with pytest.raises(WeightSyncError, match="bfloat16"):
        verified(Manifest(1, describe(sent)), [sent], network.state_dict())


def test_tied_names_with_two_values_are_refused(tiny_model_path: Path) -> None:
    own = perturbed(tiny_model_path, 0).state_dict()
    sent = {**own, "lm_head.weight": own["lm_head.weight"] + 1}
    with pytest.raises(WeightSyncError, match=r"lm_head\.weight: tied to model\.embed_tokens\.weight"):
        verified(Manifest(1, describe(sent)), [sent], own)


def test_a_publication_without_the_tied_name_is_refused(tiny_model_path: Path) -> None:
    own = perturbed(tiny_model_path, 0).state_dict()
    sent = {name: tensor for name, tensor in own.items() if name != "lm_head.weight"}
    with pytest.raises(WeightSyncError, match=r"lm_head\.weight"):
        verified(Manifest(1, describe(sent)), [sent], own)


def test_only_different_tensors_count(tiny_model_path: Path) -> None:
    own = perturbed(tiny_model_path, 0).state_dict()
    sent = {**own, "model.norm.weight": own["model.norm.weight"] + 1}
    arrived = verified(Manifest(1, describe(sent)), [sent], own)
    assert copy_weights(own, arrived) == 1
    assert copy_weights(own, arrived) == 0
    assert torch.equal(own["model.norm.weight"], sent["model.norm.weight"])


def test_a_release_frees_and_a_restore_takes_all_parameters(tiny_model_path: Path) -> None:
    network = perturbed(tiny_model_path, 0)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    release_weights(network)
    assert all(parameter.untyped_storage().nbytes() <= 4 for parameter in network.parameters())
    restore_weights(network)
    own = network.state_dict()
    assert own["lm_head.weight"].data_ptr() == own["model.embed_tokens.weight"].data_ptr(), "still tied"
    copy_weights(own, verified(Manifest(1, describe(before)), [before], own))
    assert all(torch.equal(tensor, before[name]) for name, tensor in own.items())

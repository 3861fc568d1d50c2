"""Weights are exchanged in place."""

from pathlib import Path

import torch

from relax_core.engines.torch.weights import copy_weights, release_weights, restore_weights
from relax_core.testing.publications import perturbed


def test_a_release_frees_and_a_restore_takes_all_parameters(tiny_model_path: Path) -> None:
    network = perturbed(tiny_model_path, 0)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    release_weights(network)
    assert all(parameter.untyped_storage().nbytes() <= 4 for parameter in network.parameters())
    restore_weights(network)
    own = network.state_dict()
    assert own["lm_head.weight"].data_ptr() == own["model.embed_tokens.weight"].data_ptr(), "still tied"
    copy_weights(own, before)
    assert all(torch.equal(tensor, before[name]) for name, tensor in own.items())

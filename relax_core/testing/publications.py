"""Publications of weights for contract suites: sound ones, and faulty ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from relax_core.api.weights import Manifest, Publication
from relax_core.weights.manifest import buckets, checksum, describe


def perturbed(path: Path, version: int) -> Any:
    """The float32 model of a folder after a seeded change of all its weights: version 0 is the folder's own."""
    network: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    generator = torch.Generator().manual_seed(version)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05 if version else 0.0)
    return network


def publication_of(network: torch.nn.Module, version: int) -> Publication:
    """All tensors of a model, in buckets that can be read once."""
    tensors = network.state_dict()
    return Publication(Manifest(version, describe(tensors)), buckets(tensors, max_bytes=100_000))


def with_fault(publication: Publication, name: str, fault: str) -> Publication:
    """A publication in which one tensor is not as it should be.

    Args:
        publication: A sound one; its buckets are consumed.
        name: The tensor.
        fault: ``checksum``: other bytes than announced. ``shape``: announced and sent with one element less.
            ``missing``: neither announced nor sent. ``not sent``: announced only. ``unknown``: one more of its kind.
    """
    tensors = {key: tensor for bucket in publication.buckets for key, tensor in bucket.items()}
    entries = dict(publication.manifest.tensors)
    if fault == "checksum":
        tensors[name] = tensors[name] + 1
    elif fault == "shape":
        tensors[name] = tensors[name][:-1]
        entries[name] = replace(entries[name], shape=tuple(tensors[name].shape), checksum=checksum(tensors[name]))
    elif fault == "unknown":
        tensors[f"{name}.more"], entries[f"{name}.more"] = tensors[name], entries[name]
    elif fault == "missing":
        del tensors[name], entries[name]
    elif fault == "not sent":
        del tensors[name]
    else:
        raise ValueError(f"no fault is called {fault!r}")
    return Publication(replace(publication.manifest, tensors=entries), [tensors])

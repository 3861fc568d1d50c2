"""Publications of weights for contract suites: sound ones, and faulty ones."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from relax_core.api.engine import Engine, GenerateRequest, Generation, Health
from relax_core.api.errors import RelaxError
from relax_core.api.weights import Acknowledgement, Bucket, Manifest, Publication
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


class Taker(Engine):
    """A receiver that keeps the tensors it is sent, and computes nothing."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    async def receive(self, manifest: Manifest, buckets: Iterable[Bucket]) -> None:
        """Reads all buckets, on a thread as engines do."""
        self.tensors = await asyncio.to_thread(_copies, buckets)

    async def update(self, manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        """Acknowledges what was received."""
        return Acknowledgement(manifest.version, frozenset(self.tensors), len(self.tensors))

    async def pause(self) -> None:
        """There is nothing to pause."""

    async def resume(self) -> None:
        """There is nothing to resume."""

    async def health(self) -> Health:
        """Well."""
        return Health(True, 0, 0, 0)

    async def start(self) -> None:
        """There is nothing to start."""

    async def close(self) -> None:
        """There is nothing to close."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Refused."""
        raise RelaxError("this receiver computes nothing")

    async def abort(self, keys: Sequence[str] | None = None) -> None:
        """Nothing is in flight."""

    async def release(self, what: frozenset[str] = frozenset()) -> None:
        """There is nothing to release."""

    async def restore(self) -> None:
        """There is nothing to restore."""


def _copies(buckets: Iterable[Bucket]) -> dict[str, Tensor]:
    return {name: tensor.clone() for bucket in buckets for name, tensor in bucket.items()}


def with_fault(publication: Publication, name: str, fault: str) -> Publication:
    """A publication in which one tensor is not as it should be.

    Args:
        publication: A sound one; its buckets are consumed.
        name: The tensor.
        fault: ``checksum``: other bytes than announced. ``byte``: one bit is another than announced. ``shape``:
            announced and sent with one element less. ``missing``: neither announced nor sent. ``not sent``: announced
            only. ``unknown``: one more of its kind.
    """
    tensors = {key: tensor for bucket in publication.buckets for key, tensor in bucket.items()}
    entries = dict(publication.manifest.tensors)
    if fault == "checksum":
        tensors[name] = tensors[name] + 1
    elif fault == "byte":
        tensors[name] = tensors[name].clone()
        tensors[name].view(torch.uint8).view(-1)[0] ^= 1
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

"""What a publication for a model must consist of. vLLM itself cannot tell: it fuses, pads and packs what it loads."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from relax_core.api.context import ModelSource
from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Bucket, Manifest, TensorEntry
from relax_core.weights.manifest import describe, verify_bucket


@dataclass(frozen=True)
class Inventory:
    """The tensors of a model as last published.

    Args:
        tensors: By canonical Hugging Face name, in the model's order.
        tied: Names of further uses of a tensor, with the first name of each.
    """

    tensors: Mapping[str, TensorEntry]
    tied: Mapping[str, str]

    def verified(self, manifest: Manifest, buckets: Iterable[Bucket]) -> dict[str, Tensor]:
        """All tensors of a full publication, after every check.

        Raises:
            WeightSyncError: Names the first tensor that is missing, unknown or not what the manifest or the model says.
        """
        if manifest.kind != "full":
            raise WeightSyncError(
                f"version {manifest.version}: the vllm engine takes kind 'full', not {manifest.kind!r}"
            )
        _same_names("the model", self.tensors, "the manifest", manifest.tensors)
        for name, entry in self.tensors.items():
            published = manifest.tensors[name]
            if (published.shape, published.dtype) != (entry.shape, entry.dtype):
                raise WeightSyncError(
                    f"{name}: published as {published.dtype}{list(published.shape)}, "
                    f"the model has {entry.dtype}{list(entry.shape)}"
                )
        for name, first in self.tied.items():
            if manifest.tensors[name].checksum != manifest.tensors[first].checksum:
                raise WeightSyncError(f"{name}: tied to {first} in the model, but published with another value")
        arrived: dict[str, Tensor] = {}
        for bucket in buckets:
            verify_bucket(manifest, bucket)
            arrived.update(bucket)
        _same_names("the manifest", manifest.tensors, "the buckets", arrived)
        return arrived

    def changed(self, manifest: Manifest) -> int:
        """How many tensors of a verified manifest have other bytes than here; tied names count each."""
        return sum(manifest.tensors[name].checksum != entry.checksum for name, entry in self.tensors.items())

    def after(self, manifest: Manifest) -> "Inventory":
        """The inventory once a verified manifest has been taken over."""
        return replace(self, tensors={name: manifest.tensors[name] for name in self.tensors})


def take_inventory(source: ModelSource) -> Inventory:
    """Loads a model folder as a trainer does, into the host's memory, and lets go of it."""
    loader: Any = AutoModelForCausalLM
    network = loader.from_pretrained(
        source.path, dtype=getattr(torch, source.dtype), trust_remote_code=source.trust_remote_code
    )
    tensors: dict[str, Tensor] = network.state_dict()
    places: dict[int, str] = {}
    firsts = {name: places.setdefault(tensor.data_ptr(), name) for name, tensor in tensors.items() if tensor.numel()}
    return Inventory(describe(tensors), {name: first for name, first in firsts.items() if name != first})


def _same_names(first: str, has: Mapping[str, object], second: str, compared: Mapping[str, object]) -> None:
    missing, unknown = sorted(has.keys() - compared.keys()), sorted(compared.keys() - has.keys())
    if missing:
        raise WeightSyncError(f"{second} lacks {len(missing)} tensors that {first} has, the first is {missing[0]}")
    if unknown:
        raise WeightSyncError(f"{second} has {len(unknown)} tensors that {first} lacks, the first is {unknown[0]}")

"""Exchanges a model's weights in place: all or nothing."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Bucket, Manifest
from relax_core.weights.manifest import verify_bucket


def verified(manifest: Manifest, buckets: Iterable[Bucket], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All tensors of a publication, after every check, so that copying them cannot fail.

    Args:
        manifest: What was published.
        buckets: The tensors; held by reference until all have been seen.
        own: The receiving model's ``state_dict``.

    Raises:
        WeightSyncError: Names the first tensor that is missing, unknown or not what the manifest or the model says.
    """
    if manifest.kind != "full":
        raise WeightSyncError(f"version {manifest.version}: the torch engine takes kind 'full', not {manifest.kind!r}")
    _same_names("the model", own, "the manifest", manifest.tensors)
    arrived: dict[str, Tensor] = {}
    for bucket in buckets:
        verify_bucket(manifest, bucket)
        arrived.update(bucket)
    _same_names("the manifest", manifest.tensors, "the buckets", arrived)
    tied: dict[int, str] = {}
    for name, tensor in own.items():
        entry = manifest.tensors[name]
        expected = (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        if (entry.shape, entry.dtype) != expected:
            raise WeightSyncError(f"{name}: published as {entry.shape} {entry.dtype}, the model holds {expected}")
        first = tied.setdefault(tensor.data_ptr(), name) if tensor.numel() else name
        if manifest.tensors[first].checksum != entry.checksum:
            raise WeightSyncError(f"{name}: tied to {first} in the model, but published with another value")
    return arrived


def copy_weights(own: Mapping[str, Tensor], arrived: Mapping[str, Tensor]) -> int:
    """Copies values in place; returns how many tensors were different before. Tied names count each."""
    different = []
    with torch.no_grad():
        for name, tensor in own.items():
            value = arrived[name].to(tensor.device)
            if not torch.equal(tensor, value):
                different.append((tensor, value))
        for tensor, value in different:
            tensor.copy_(value)
    return len(different)


def release_weights(network: torch.nn.Module) -> None:
    """Gives the memory of all parameters back; they keep their shapes over a single number."""
    for parameter in network.parameters():
        parameter.data = parameter.data.new_empty(()).expand(parameter.shape)


def restore_weights(network: torch.nn.Module) -> None:
    """Takes memory for all parameters again; their values are undefined."""
    for parameter in network.parameters():
        parameter.data = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)


def _same_names(first: str, has: Mapping[str, object], second: str, compared: Mapping[str, object]) -> None:
    missing, unknown = sorted(has.keys() - compared.keys()), sorted(compared.keys() - has.keys())
    if missing:
        raise WeightSyncError(f"{second} lacks {len(missing)} tensors that {first} has, the first is {missing[0]}")
    if unknown:
        raise WeightSyncError(f"{second} has {len(unknown)} tensors that {first} lacks, the first is {unknown[0]}")

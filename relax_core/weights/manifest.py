"""What a publication consists of, and whether it arrived as it was sent."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Bucket, Manifest, TensorEntry

BUCKET_BYTES = 512 * 2**20


def checksum(tensor: Tensor) -> int:
    """CRC-32 of the tensor's elements in row-major order, as bytes in memory, whatever its dtype and strides."""
    return zlib.crc32(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def describe(tensors: Mapping[str, Tensor]) -> dict[str, TensorEntry]:
    """Manifest entries of some named tensors."""
    return {
        name: TensorEntry(tuple(tensor.shape), _dtype(tensor), checksum(tensor)) for name, tensor in tensors.items()
    }


def buckets(tensors: Mapping[str, Tensor], max_bytes: int = BUCKET_BYTES) -> Iterator[Bucket]:
    """The tensors in order, as copies made bucket by bucket, so that no receiver can hold the sender's own memory.

    Args:
        tensors: By name.
        max_bytes: Largest sum of bytes in a bucket; a larger tensor gets one of its own.
    """
    bucket: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        if bucket and size + tensor.nbytes > max_bytes:
            yield bucket
            bucket, size = {}, 0
        bucket[name] = tensor.detach().clone()
        size += tensor.nbytes
    if bucket:
        yield bucket


def verify_bucket(manifest: Manifest, bucket: Bucket) -> None:
    """Compares received tensors with the manifest.

    Raises:
        WeightSyncError: Names the first tensor that is unknown, or differs in shape, dtype or bytes.
    """
    for name, tensor in bucket.items():
        entry = manifest.tensors.get(name)
        if entry is None:
            raise WeightSyncError(f"version {manifest.version}: {name} is not in the manifest")
        shape, dtype = tuple(tensor.shape), _dtype(tensor)
        if (shape, dtype) != (entry.shape, entry.dtype):
            raise WeightSyncError(
                f"version {manifest.version}: {name} arrived as {dtype}{list(shape)}, "
                f"the manifest says {entry.dtype}{list(entry.shape)}"
            )
        if checksum(tensor) != entry.checksum:
            raise WeightSyncError(f"version {manifest.version}: {name} arrived with other bytes than were sent")


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")

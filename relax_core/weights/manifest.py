"""What a publication consists of, and whether it arrived as it was sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch import Tensor

from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Bucket, Manifest, Publication, TensorEntry

BUCKET_BYTES = 512 * 2**20

Place = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]


def checksum(tensor: Tensor) -> int:
    """XXH3 (64 bits) of the elements in row-major order, as bytes in memory, whatever dtype and strides."""
    return xxhash.xxh3_64_intdigest(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def describe(tensors: Mapping[str, Tensor]) -> dict[str, TensorEntry]:
    """Manifest entries of some named tensors; memory that several names share is read once."""
    sums: dict[Place, int] = {}
    entries = {}
    for name, tensor in tensors.items():
        place = place_of(tensor)
        if place not in sums:
            sums[place] = checksum(tensor)
        entries[name] = TensorEntry(tuple(tensor.shape), dtype_name(tensor.dtype), sums[place])
    return entries


@dataclass(frozen=True)
class TensorBuckets(Iterable[Bucket]):
    """Tensors in order, as copies made bucket by bucket, so that no receiver can hold the sender's own memory.

    Args:
        tensors: By name.
        max_bytes: Largest sum of bytes in a bucket; a larger tensor gets one of its own.
    """

    tensors: Mapping[str, Tensor]
    max_bytes: int = BUCKET_BYTES

    def __iter__(self) -> Iterator[Bucket]:
        for bucket in self.in_place():
            yield {name: tensor.clone() for name, tensor in bucket.items()}

    def in_place(self) -> Iterator[Bucket]:
        """The same in the sender's own memory, for a carrier that makes the one copy itself, at once."""
        bucket: dict[str, Tensor] = {}
        size = 0
        for name, tensor in self.tensors.items():
            if bucket and size + tensor.nbytes > self.max_bytes:
                yield bucket
                bucket, size = {}, 0
            bucket[name] = tensor.detach()
            size += tensor.nbytes
        if bucket:
            yield bucket


def buckets(tensors: Mapping[str, Tensor], max_bytes: int = BUCKET_BYTES) -> TensorBuckets:
    """The buckets of some named tensors; see :class:`TensorBuckets`."""
    return TensorBuckets(tensors, max_bytes)


def in_place(publication: Publication) -> Iterable[Bucket]:
    """The tensors of a publication, to be copied before anything else happens to them."""
    sent = publication.buckets
    return sent.in_place() if isinstance(sent, TensorBuckets) else sent


def bytes_in(publication: Publication) -> int:
    """Bytes that a publication in this process carries, memory that names share counted once."""
    sent = publication.buckets
    held = [sent.tensors] if isinstance(sent, TensorBuckets) else sent if isinstance(sent, Sequence) else ()
    return sum({place_of(tensor): tensor.nbytes for bucket in held for tensor in bucket.values()}.values())


def on_host(bucket: Bucket) -> dict[str, Tensor]:
    """Contiguous copies in this process's memory; names that share memory share a copy."""
    firsts = tied_names(bucket)
    copies = {name: tensor.detach().cpu().contiguous() for name, tensor in bucket.items() if name not in firsts}
    own = {name: copy.clone() if copy.data_ptr() == bucket[name].data_ptr() else copy for name, copy in copies.items()}
    return {name: own[firsts.get(name, name)] for name in bucket}


def verify_bucket(manifest: Manifest, bucket: Bucket) -> None:
    """Compares received tensors with the manifest; their bytes only where the manifest asks for it.

    Raises:
        WeightSyncError: Names the first tensor that is unknown, or differs in shape, dtype or bytes.
    """
    sums: dict[Place, int] = {}
    for name, tensor in bucket.items():
        entry = manifest.tensors.get(name)
        if entry is None:
            raise WeightSyncError(f"version {manifest.version}: {name} is not in the manifest")
        shape, dtype = tuple(tensor.shape), dtype_name(tensor.dtype)
        if (shape, dtype) != (entry.shape, entry.dtype):
            raise WeightSyncError(
                f"version {manifest.version}: {name} arrived as {dtype}{list(shape)}, "
                f"the manifest says {entry.dtype}{list(entry.shape)}"
            )
        if not manifest.verify:
            continue
        place = place_of(tensor)
        if place not in sums:
            sums[place] = checksum(tensor)
        if sums[place] != entry.checksum:
            raise WeightSyncError(f"version {manifest.version}: {name} arrived with other bytes than were sent")


def to_json(manifest: Manifest) -> dict[str, Any]:
    """The manifest as JSON values."""
    return {**vars(manifest), "tensors": {name: vars(entry) for name, entry in manifest.tensors.items()}}


def from_json(stored: Mapping[str, Any]) -> Manifest:
    """The manifest that :func:`to_json` wrote.

    Raises:
        WeightSyncError: It is none.
    """
    try:
        tensors = {
            name: TensorEntry(tuple(entry["shape"]), entry["dtype"], entry["checksum"])
            for name, entry in stored["tensors"].items()
        }
        return Manifest(stored["version"], tensors, stored["kind"], stored["base"], stored["verify"])
    except (KeyError, TypeError, AttributeError) as error:
        raise WeightSyncError(f"this is no manifest: {type(error).__name__}: {error}") from error


def place_of(tensor: Tensor) -> Place:
    """Equal for tensors that are the same elements of the same memory, as tied parameters are."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def tied_names(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Names of further uses of a tensor, with the first name of each."""
    firsts: dict[Place, str] = {}
    named = {name: firsts.setdefault(place_of(tensor), name) for name, tensor in tensors.items() if tensor.numel()}
    return {name: first for name, first in named.items() if name != first}


def dtype_name(dtype: torch.dtype) -> str:
    """torch's name without prefix: ``bfloat16``."""
    return str(dtype).removeprefix("torch.")

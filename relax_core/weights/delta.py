"""Deltas: of each tensor the elements whose bits changed, with their places; exact, whatever the dtype."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Bucket, Manifest, Publication
from relax_core.weights.manifest import bytes_in, in_place, on_host, tied_names

PLACES, BITS = "#places", "#bits"
"""Ends of the names of the two tensors that stand for a changed one: no parameter has such a name."""

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By size of an element in bytes: what its bits are compared and sent as."""


def applied(bucket: Bucket, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that a bucket of a delta is about, whole, on the host.

    Args:
        bucket: Whole tensors under their names, changed elements under a name with an end.
        base: Tensors of the version that the delta builds on; they stay as they are.

    Raises:
        WeightSyncError: Names a tensor that has no base, or places that are not in it.
    """
    whole = {name: tensor for name, tensor in bucket.items() if not name.endswith((PLACES, BITS))}
    for key in bucket:
        if key.endswith(PLACES):
            name = key.removesuffix(PLACES)
            whole[name] = _changed(name, base, bucket[key], bucket.get(name + BITS))
    return whole


def _changed(name: str, base: Mapping[str, Tensor], places: Tensor, bits: Tensor | None) -> Tensor:
    if name not in base or bits is None:
        raise WeightSyncError(f"{name}: a delta of it arrived without its {'bits' if name in base else 'base'}")
    tensor = base[name].detach().cpu().contiguous().clone()
    at = places.long()
    if len(at) != len(bits) or (len(at) and not 0 <= int(at.min()) <= int(at.max()) < tensor.numel()):
        raise WeightSyncError(f"{name}: a delta of it arrived with places that it does not have")
    _bits(tensor)[at] = bits
    return tensor


def difference(name: str, tensor: Tensor, before: Tensor) -> dict[str, Tensor]:
    """What must be sent of a tensor: nothing, its changed elements, or all of it where that is no more.

    Args:
        name: Of the tensor.
        tensor: On the host, contiguous, as ``before``.
        before: The same tensor in the version that receivers have.
    """
    bits = _bits(tensor)
    places = (bits != _bits(before)).nonzero().flatten()
    if not len(places):
        return {}
    narrow = places.int() if tensor.numel() < 2**31 else places
    if len(places) * (narrow.itemsize + bits.itemsize) >= tensor.nbytes:
        return {name: tensor}
    return {name + PLACES: narrow, name + BITS: bits[places]}


def differences(bucket: Bucket, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What must be sent of a bucket's tensors; names that share memory share what is sent of them."""
    firsts = tied_names(bucket)
    changes: dict[str, Tensor] = {}
    for name, tensor in bucket.items():
        if name not in firsts:
            changes |= difference(name, tensor, base[name])
    for name, first in firsts.items():
        changes |= {name + end: changes[first + end] for end in ("", PLACES, BITS) if first + end in changes}
    return changes


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(INTEGERS[tensor.itemsize])


class DeltaEncoder:
    """Makes deltas against the last publication that all receivers acknowledged. Holds that publication on the host.

    A late receiver needs the last full publication and all deltas since. When these together would be as large as a
    full one, a full one is sent.
    """

    def __init__(self) -> None:
        self._base: Publication | None = None
        self._next: Publication | None = None
        self._since_full = 0

    def encode(self, publication: Publication, whole: bool) -> Publication:
        """The publication as it is to be sent, in memory of its own.

        Args:
            publication: Full.
            whole: Whether a receiver does not have the last one.
        """
        manifest = publication.manifest
        buckets = [on_host(bucket) for bucket in in_place(publication)]
        self._next = Publication(manifest, buckets)
        if whole or self._base is None:
            self._since_full = 0
            return self._next
        base = {name: tensor for bucket in self._base.buckets for name, tensor in bucket.items()}
        changes = [bucket for bucket in (differences(whole, base) for whole in buckets) if bucket]
        delta = Publication(replace(manifest, kind="delta", base=self._base.manifest.version), changes)
        self._since_full += bytes_in(delta)
        if self._since_full >= bytes_in(self._next):
            self._since_full = 0
            return self._next
        return delta

    def acknowledged(self) -> None:
        """All receivers have what was encoded last."""
        self._base = self._next

    def forget(self) -> None:
        """What receivers have is not known: the next publication is full."""
        self._base = self._next = None


@dataclass(frozen=True)
class ComposedBuckets(Iterable[Bucket]):
    """The buckets of a full publication with deltas applied to them in order."""

    full: Iterable[Bucket]
    deltas: Sequence[Iterable[Bucket]]

    def __iter__(self) -> Iterator[Bucket]:
        changes = [{name: tensor for bucket in delta for name, tensor in bucket.items()} for delta in self.deltas]
        for bucket in self.full:
            whole = dict(bucket)
            for change in changes:
                whole |= applied(_about(bucket, change), whole)
            yield whole


def _about(bucket: Bucket, change: Bucket) -> dict[str, Tensor]:
    keys = (key for name in bucket for key in (name, name + PLACES, name + BITS) if key in change)
    return {key: change[key] for key in keys}


def chain(kept: Sequence[Publication], newest: Publication) -> list[Publication]:
    """What a late receiver needs once a publication has arrived: a full one alone, a delta after what it builds on."""
    return [newest] if newest.manifest.kind == "full" else [*kept, newest]


def composed(kept: Sequence[Publication]) -> Publication | None:
    """One full publication of a full one and the deltas that follow it; ``None`` of nothing."""
    if not kept:
        return None
    full, *deltas = kept
    manifest: Manifest = replace(kept[-1].manifest, kind="full", base=None)
    if not deltas:
        return full
    return Publication(manifest, ComposedBuckets(full.buckets, [delta.buckets for delta in deltas]))

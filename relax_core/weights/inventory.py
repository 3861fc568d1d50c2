"""What a receiver of publications holds, and whether a publication may take its place: all of it or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Bucket, Manifest, TensorEntry
from relax_core.weights.delta import applied
from relax_core.weights.manifest import describe, tied_names, verify_bucket


@dataclass(frozen=True)
class Inventory:
    """The tensors of a model as last published. It needs no tensor: a receiver may fuse, pad or pack what it is given.

    Args:
        version: Of the weights.
        tensors: By canonical Hugging Face name.
        tied: Names of further uses of a tensor, with the first name of each.
        released: Whether their memory was given back, so that the same version may come again.
    """

    version: int = 0
    tensors: Mapping[str, TensorEntry] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)
    released: bool = False

    def verified(
        self, manifest: Manifest, buckets: Iterable[Bucket], base: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """The tensors of a publication, after every check: all of a full one, held by reference, and of a delta those
        that it changes, whole.

        Args:
            manifest: What is published.
            buckets: As they arrived.
            base: The model's own tensors, where deltas are taken.

        Raises:
            WeightSyncError: The version does not grow, the kind is none that is taken, or a delta builds on another
                version; else names the first tensor that is missing, unknown or not what the manifest or the model
                says.
        """
        if manifest.version < self.version + (not self.released):
            raise WeightSyncError(f"version {manifest.version} does not come after version {self.version}")
        is_delta = manifest.kind == "delta" and base is not None
        if manifest.kind != "full" and not is_delta:
            raise WeightSyncError(f"version {manifest.version}: kind {manifest.kind!r} is not taken here")
        if is_delta and manifest.base != self.version:
            raise WeightSyncError(f"version {manifest.version} builds on {manifest.base}, and here is {self.version}")
        self._verify_entries(manifest)
        arrived: dict[str, Tensor] = {}
        for bucket in buckets:
            whole = applied(bucket, base) if is_delta and base is not None else bucket
            verify_bucket(manifest, whole)
            arrived.update(whole)
        if is_delta:
            self._verify_unchanged(manifest, arrived)
        else:
            _same_names("the manifest", manifest.tensors, "the buckets", arrived)
        return arrived

    def _verify_unchanged(self, manifest: Manifest, arrived: Mapping[str, Tensor]) -> None:
        """What a delta does not name must be what it was."""
        for name in manifest.tensors.keys() - arrived.keys():
            if manifest.tensors[name] != self.tensors[name]:
                raise WeightSyncError(f"version {manifest.version}: {name} changed, and nothing of it arrived")

    def _verify_entries(self, manifest: Manifest) -> None:
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

    def changed(self, manifest: Manifest) -> int:
        """How many tensors of a verified manifest have other bytes than here; tied names count each."""
        return sum(manifest.tensors[name].checksum != entry.checksum for name, entry in self.tensors.items())

    def after(self, manifest: Manifest) -> Inventory:
        """The inventory once a verified manifest has been taken over."""
        return replace(self, version=manifest.version, tensors=manifest.tensors, released=False)


def inventory_of(tensors: Mapping[str, Tensor]) -> Inventory:
    """The inventory of a model's ``state_dict``, as version 0; names that share memory are tied."""
    return Inventory(0, describe(tensors), tied_names(tensors))


def _same_names(first: str, has: Mapping[str, object], second: str, compared: Mapping[str, object]) -> None:
    missing, unknown = sorted(has.keys() - compared.keys()), sorted(compared.keys() - has.keys())
    if missing:
        raise WeightSyncError(f"{second} lacks {len(missing)} tensors that {first} has, the first is {missing[0]}")
    if unknown:
        raise WeightSyncError(f"{second} has {len(unknown)} tensors that {first} lacks, the first is {unknown[0]}")

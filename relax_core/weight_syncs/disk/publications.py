"""Publications as folders: a folder is either complete or not there."""

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from relax_core.api.weights import Bucket, Manifest, Publication, TensorEntry

MANIFEST = "manifest.json"
FOLDER = re.compile(r"version-(\d{8})")


@dataclass(frozen=True)
class StoredPublication(Iterable[Bucket]):
    """The buckets of a publication on disk, read when they are iterated, any number of times; small when pickled.

    Args:
        folder: ``version-00000012``.
    """

    folder: Path

    @property
    def version(self) -> int:
        """Of the publication."""
        return int(self.folder.name.rpartition("-")[2])

    def __iter__(self) -> Iterator[Bucket]:
        for file in sorted(self.folder.glob("bucket-*.safetensors")):
            yield load_file(file)

    def manifest(self) -> Manifest:
        """What the publication consists of."""
        stored = json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))
        tensors = {
            name: TensorEntry(tuple(entry["shape"]), entry["dtype"], entry["checksum"])
            for name, entry in stored["tensors"].items()
        }
        return Manifest(stored["version"], tensors, stored["kind"], stored["base"])


def store(publication: Publication, directory: Path) -> StoredPublication:
    """Writes a publication aside and renames it; another one of the same version is replaced."""
    manifest = publication.manifest
    final = directory / f"version-{manifest.version:08d}"
    partial = directory / f".{final.name}.partial-{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for number, bucket in enumerate(publication.buckets):
        save_file(_apart(bucket), partial / f"bucket-{number:05d}.safetensors")
    tensors = {name: vars(entry) for name, entry in manifest.tensors.items()}
    stored = {"version": manifest.version, "kind": manifest.kind, "base": manifest.base, "tensors": tensors}
    (partial / MANIFEST).write_text(json.dumps(stored), encoding="utf-8")
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    return StoredPublication(final)


def newest(directory: Path) -> StoredPublication | None:
    """The complete publication of the highest version, if there is one."""
    folders = [path for path in directory.glob("version-*") if FOLDER.fullmatch(path.name)]
    return StoredPublication(max(folders)) if folders else None


def remove_below(directory: Path, version: int) -> None:
    """Removes publications of lower versions, and what is left of writing them."""
    for path in directory.glob("*version-*"):
        digits = re.search(r"version-(\d{8})", path.name)
        if digits and int(digits[1]) < version:
            shutil.rmtree(path, ignore_errors=True)


def _apart(bucket: Bucket) -> dict[str, Tensor]:
    """The tensors on the host, none sharing memory with another, as the file format asks."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in bucket.items():
        held = tensor.detach().cpu().contiguous()
        apart[name] = held.clone() if held.data_ptr() in seen else held
        seen.add(held.data_ptr())
    return apart

"""Publications as folders: a folder is either complete or not there."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from relax_core.api.weights import Bucket, Manifest, Publication, SharedBuckets
from relax_core.weights.manifest import from_json, in_place, tied_names, to_json

MANIFEST = "manifest.json"
FOLDER = re.compile(r"version-(\d{8})")


@dataclass(frozen=True)
class StoredPublication(SharedBuckets):
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
            with safe_open(file, "pt") as stored:
                bucket = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - it is no mapping
                yield bucket | {name: bucket[first] for name, first in (stored.metadata() or {}).items()}

    def manifest(self) -> Manifest:
        """What the publication consists of."""
        return from_json(json.loads((self.folder / MANIFEST).read_text(encoding="utf-8")))


def store(publication: Publication, directory: Path) -> StoredPublication:
    """Writes a publication aside and renames it; another one of the same version is replaced."""
    manifest = publication.manifest
    final = directory / f"version-{manifest.version:08d}"
    partial = directory / f".{final.name}.partial-{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for number, bucket in enumerate(in_place(publication)):
        firsts = tied_names(bucket)
        apart = {name: tensor.detach().cpu().contiguous() for name, tensor in bucket.items() if name not in firsts}
        # The format allows no two tensors to share memory, but metadata: further names of a tensor, with its first.
        save_file(apart, partial / f"bucket-{number:05d}.safetensors", metadata=firsts)
    (partial / MANIFEST).write_text(json.dumps(to_json(manifest)), encoding="utf-8")
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    return StoredPublication(final)


def kept(directory: Path) -> list[Publication]:
    """The newest full publication that is complete, and the deltas after it, in order."""
    folders = [path for path in sorted(directory.glob("version-*"), reverse=True) if FOLDER.fullmatch(path.name)]
    publications: list[Publication] = []
    for stored in map(StoredPublication, folders):
        publications.insert(0, Publication(stored.manifest(), stored))
        if publications[0].manifest.kind == "full":
            return publications
    return []


def remove_unneeded(directory: Path, version: int) -> None:
    """Removes what nobody needs who wants ``version``: publications before its full one, and what is left of writing.

    Args:
        directory: Of the publications.
        version: The newest that every engine has.
    """
    needed = [publication.manifest.version for publication in kept(directory)]
    for path in directory.glob("*version-*"):
        digits = re.search(r"version-(\d{8})", path.name)
        if digits and int(digits[1]) < version and int(digits[1]) not in needed:
            shutil.rmtree(path, ignore_errors=True)

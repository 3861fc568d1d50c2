"""Publications as folders, each complete or not there, and the record of those that late engines need."""

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from relax_core.api.weights import Bucket, Publication, SharedBuckets
from relax_core.weights.manifest import in_place, tied_names
from relax_core.weights.record import read_record, write_record

RECORD = "newest.json"
"""Beside the folders: which of them a late engine needs. Whatever it does not name is offered to nobody."""

FOLDER = re.compile(r"version-(\d{8})")


@dataclass(frozen=True)
class StoredPublication(SharedBuckets):
    """The buckets of a publication on disk, read when they are iterated, any number of times; small when pickled.

    Args:
        folder: ``version-00000012``.
    """

    folder: Path

    def __iter__(self) -> Iterator[Bucket]:
        for file in sorted(self.folder.glob("bucket-*.safetensors")):
            with safe_open(file, "pt") as stored:
                bucket = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - it is no mapping
                yield bucket | {name: bucket[first] for name, first in (stored.metadata() or {}).items()}


def store(publication: Publication, directory: Path) -> StoredPublication:
    """Writes a publication aside and renames it; another one of the same version is replaced."""
    final = directory / f"version-{publication.manifest.version:08d}"
    partial = directory / f".{final.name}.partial-{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for number, bucket in enumerate(in_place(publication)):
        firsts = tied_names(bucket)
        apart = {name: tensor.detach().cpu().contiguous() for name, tensor in bucket.items() if name not in firsts}
        # The format allows no two tensors to share memory, but metadata: further names of a tensor, with its first.
        save_file(apart, partial / f"bucket-{number:05d}.safetensors", metadata=firsts)
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    return StoredPublication(final)


def keep(publications: Sequence[Publication], directory: Path) -> None:
    """Writes down what late engines need, and removes what nobody needs who has the newest: what was needed before, and
    what is left of writing.

    Args:
        publications: A full one, and the deltas after it, in order; every engine has the last.
        directory: Of the publications.
    """
    write_record(directory / RECORD, publications, _name)
    needed = {_name(publication.buckets) for publication in publications}
    for path in directory.glob("*version-*"):
        version = FOLDER.search(path.name)
        if version and int(version[1]) <= publications[-1].manifest.version and path.name not in needed:
            shutil.rmtree(path, ignore_errors=True)


def kept(directory: Path) -> list[Publication]:
    """The publications of :func:`keep`; none where nothing is kept."""
    return read_record(directory / RECORD, lambda name: StoredPublication(directory / name))


def remove(directory: Path) -> None:
    """Removes all publications, whoever has stored them."""
    with suppress(FileNotFoundError, NotADirectoryError):
        (directory / RECORD).unlink()
    shutil.rmtree(directory, ignore_errors=True)


def _name(stored: Iterable[Bucket]) -> str:
    assert isinstance(stored, StoredPublication), "what is kept was stored here"
    return stored.folder.name

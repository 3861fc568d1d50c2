"""Bytes by their content: media and other things that many rows share."""

import hashlib
from typing import Generic, NamedTuple, TypeVar

from relax_core.api.errors import TransportError

D = TypeVar("D")


class Blob(NamedTuple, Generic[D]):
    """What is kept of a blob: its bytes, or where they are; how many; and for how many holders."""

    data: D
    nbytes: int
    references: int


class Blobs(Generic[D]):
    """Reference-counted data under the SHA-256 of its bytes; the caller has it to itself."""

    def __init__(self) -> None:
        self.held: dict[str, Blob[D]] = {}
        self.nbytes = 0

    def put(self, key: str, data: D, nbytes: int, references: int = 1) -> None:
        """Adds references; equal bytes are kept and counted once."""
        if key in self.held:
            references += self.held[key].references
            data = self.held[key].data
        else:
            self.nbytes += nbytes
        self.held[key] = Blob(data, nbytes, references)

    def hold(self, key: str) -> bool:
        """Adds a reference to a blob that is here already; whether it is."""
        if key not in self.held:
            return False
        blob = self.held[key]
        self.held[key] = blob._replace(references=blob.references + 1)
        return True

    def get(self, key: str) -> D:
        """The data; ``TransportError`` for an unknown key."""
        if key not in self.held:
            raise TransportError(f"unknown blob {key!r}: never put, or released by its last holder")
        return self.held[key].data

    def release(self, key: str) -> None:
        """Takes one reference away; the last one frees the data."""
        self.get(key)
        blob = self.held[key]
        if blob.references > 1:
            self.held[key] = blob._replace(references=blob.references - 1)
        else:
            del self.held[key]
            self.nbytes -= blob.nbytes


def blob_key(data: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()

"""Bytes by their content: media and other things that many rows share."""

import hashlib

from relax_core.api.errors import TransportError


class Blobs:
    """Reference-counted bytes under their SHA-256; the caller holds the lock."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.references: dict[str, int] = {}
        self.bytes = 0

    def put(self, key: str, data: bytes, references: int = 1) -> None:
        """Adds references; equal bytes are kept and counted once."""
        if key not in self.data:
            self.data[key] = data
            self.bytes += len(data)
        self.references[key] = self.references.get(key, 0) + references

    def get(self, key: str) -> bytes:
        """The bytes; ``TransportError`` for an unknown key."""
        if key not in self.data:
            raise TransportError(f"unknown blob {key!r}: never put, or released by its last holder")
        return self.data[key]

    def release(self, key: str) -> None:
        """Takes one reference away; the last one frees the bytes."""
        size = len(self.get(key))
        self.references[key] -= 1
        if self.references[key] == 0:
            del self.data[key], self.references[key]
            self.bytes -= size


def blob_key(data: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()

"""Bytes by their content: media and other things that many rows share."""

import hashlib
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from relax_core.api.errors import TransportError

D = TypeVar("D")


class Blob(NamedTuple, Generic[D]):
    """What is kept of a blob: its bytes, or where they are; how many; and the groups that hold it."""

    data: D
    nbytes: int
    holders: frozenset[int]


class Blobs(Generic[D]):
    """Data under the SHA-256 of its bytes, as long as a group holds it; the caller has it to itself."""

    def __init__(self) -> None:
        self.held: dict[str, Blob[D]] = {}
        self.nbytes = 0
        self._keys: dict[int, set[str]] = {}

    def put(self, key: str, data: D, nbytes: int, holders: Iterable[int]) -> None:
        """Groups hold a blob from now on; equal bytes are kept and counted once."""
        blob = self.held.get(key)
        if blob is None:
            self.nbytes += nbytes
            blob = Blob(data, nbytes, frozenset())
        holders = frozenset(holders)
        self.held[key] = blob._replace(holders=blob.holders | holders)
        for group in holders:
            self._keys.setdefault(group, set()).add(key)

    def hold(self, key: str, group: int) -> bool:
        """A group holds a blob that is here already; whether it is."""
        blob = self.held.get(key)
        if blob is not None:
            self.put(key, blob.data, blob.nbytes, [group])
        return blob is not None

    def get(self, key: str) -> D:
        """The data; ``TransportError`` for an unknown key."""
        if key not in self.held:
            raise TransportError(f"unknown blob {key!r}: never put, or no group holds it any more")
        return self.held[key].data

    def leave(self, group: int) -> None:
        """A group holds nothing any more; what nobody else holds is freed."""
        for key in self._keys.pop(group, ()):
            blob = self.held[key]
            if len(blob.holders) > 1:
                self.held[key] = blob._replace(holders=blob.holders - {group})
            else:
                del self.held[key]
                self.nbytes -= blob.nbytes

    def nbytes_of(self, meant: Callable[[int], bool]) -> int:
        """Bytes of all that any group holds which is meant."""
        return sum([blob.nbytes for blob in self.held.values() if any(map(meant, blob.holders))])


def blob_key(data: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()

"""Encoded media that are kept because they may be asked for again."""

from collections import OrderedDict
from collections.abc import Hashable

from relax_core.api.media import Encoded


class KeptMedia:
    """Media by a key, up to so many bytes of arrays; those that were not asked for for the longest time go first.

    Args:
        most_bytes: Of all arrays together; what alone has more is not kept.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._media: OrderedDict[Hashable, Encoded] = OrderedDict()
        self._nbytes = 0

    def get(self, key: Hashable) -> Encoded | None:
        """The medium, if it is still kept."""
        if key in self._media:
            self._media.move_to_end(key)
        return self._media.get(key)

    def keep(self, key: Hashable, medium: Encoded) -> None:
        """Keeps a medium that is not kept yet, as long as there is room."""
        self._media[key] = medium
        self._nbytes += _nbytes(medium)
        while self._nbytes > self._most_bytes:
            _, oldest = self._media.popitem(last=False)
            self._nbytes -= _nbytes(oldest)


def _nbytes(medium: Encoded) -> int:
    return sum(array.nbytes for array in medium.arrays.values())

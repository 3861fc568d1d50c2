"""A set of ids that stays small while the ids come nearly in order."""

from collections.abc import Iterable


class IdSet:
    """Non-negative integers: all below a border, and a few beyond it.

    Args:
        below: Every id smaller than this belongs to the set.
        beyond: Further members.
    """

    def __init__(self, below: int = 0, beyond: Iterable[int] = ()) -> None:
        self.below = below
        self.beyond = set(beyond)

    def add(self, member: int) -> None:
        """Adds an id; the border moves up over ids without a gap."""
        if member >= self.below:
            self.beyond.add(member)
        while self.below in self.beyond:
            self.beyond.remove(self.below)
            self.below += 1

    def __contains__(self, member: int) -> bool:
        return 0 <= member < self.below or member in self.beyond

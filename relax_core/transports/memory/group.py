"""One group's rows, step by step, as they are written."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np

from relax_core.api.columns import IntArray
from relax_core.api.errors import TransportError
from relax_core.transports.memory.schema import PLACE_BITS, E, Writing

UNKNOWN_LENGTH = -1
FIRST = range(1)
"""The place of a group column's entry."""


@dataclass(eq=False, slots=True)
class Piece(Generic[E]):
    """What one step has written at the same places of a group, computed by the weights of one version.

    Args:
        places: Of the rows; :data:`FIRST` for group columns.
        entries: What was written.
        names: The columns of ``entries`` that are meant.
        version: Of the weights.
        picks: Positions of those entries that count, where not all do.
    """

    places: range | IntArray
    entries: E
    names: Sequence[str]
    version: int
    picks: IntArray | None = None


Cells = tuple[Piece[E], ...]
"""The entries of one column in one group. A single piece is in the order of the rows."""


class Group(Generic[E]):
    """Rows of one group.

    ``complete`` names the columns that every row has, once the group is closed; ``offered`` and ``acked`` name the
    consumers that it became ready for and that are done with it; ``attempts`` counts how often each was handed it.
    """

    def __init__(self, key: int) -> None:
        self.key = key
        self.rows = 0
        self.nbytes = 0
        self.closed = False
        self._lengths: IntArray | None = None
        self.cells: dict[str, Cells[E]] = {}
        self.complete: set[str] = set()
        self.offered: set[str] = set()
        self.acked: set[str] = set()
        self.attempts: dict[str, int] = {}

    @property
    def lengths(self) -> IntArray:
        """int64 ``[rows]`` tokens of each row, ``UNKNOWN_LENGTH`` where no per-token column is written."""
        return np.full(self.rows, UNKNOWN_LENGTH) if self._lengths is None else self._lengths

    @lengths.setter
    def lengths(self, lengths: IntArray) -> None:
        self._lengths = lengths

    def append(self, rows: int, entries: E, version: int) -> range:
        """Adds rows and returns their places; ``TransportError`` for a second entry of a group column."""
        self._refuse_shared(entries)
        if self.rows + rows > 1 << PLACE_BITS:
            raise TransportError(f"group {self.key} would have more than {1 << PLACE_BITS} rows")
        places = range(self.rows, self.rows + rows)
        if not self.rows:
            self._lengths = entries.lengths
        elif self._lengths is not None or entries.lengths is not None:
            new = np.full(rows, UNKNOWN_LENGTH) if entries.lengths is None else entries.lengths
            self._lengths = np.concatenate([self.lengths, new])
        self.rows += rows
        self.nbytes += entries.nbytes
        self.add(Piece(places, entries, entries.rows, version))
        if entries.shared:
            self.add(Piece(FIRST, entries, entries.shared, version))
        return places

    def pieces(self, writing: Writing[E], version: int, repeat: bool) -> list[Piece[E]]:
        """What :meth:`write` will add; with ``repeat`` that of it which is not there yet.

        Raises:
            TransportError: A row that is not there or has another number of tokens, or a cell that is written already.
        """
        entries, places = writing.entries, writing.places
        if places[-1] >= self.rows:
            raise TransportError(f"group {self.key} has {self.rows} rows, no row {places[-1]}")
        if not repeat:
            self._refuse_shared(entries)
        new = [name for name in entries.rows if name not in self.cells]
        shared = [name for name in entries.shared if name not in self.cells]
        found = [Piece(places, entries, new, version)] if new else []
        found += [self._unwritten(writing, name, version, repeat) for name in entries.rows if name in self.cells]
        if shared:
            found.append(Piece(FIRST, entries, shared, version))
        found = [piece for piece in found if len(piece.places)]
        if entries.lengths is not None:
            added = _added(found)
            self._check_lengths(places[added], entries.lengths[added])
        return found

    def write(self, writing: Writing[E], pieces: Sequence[Piece[E]]) -> int:
        """Adds what :meth:`pieces` has found; returns its bytes."""
        entries = writing.entries
        if entries.lengths is not None:
            added = _added(pieces)
            known = self.lengths.copy()  # not in place: it may be the writer's array
            known[writing.places[added]] = entries.lengths[added]
            self._lengths = known
        for piece in pieces:
            self.add(piece)
        nbytes = sum([entries.nbytes_of(name) for piece in pieces for name in piece.names])
        self.nbytes += nbytes
        return nbytes

    def add(self, piece: Piece[E]) -> None:
        """Adds a piece whose bytes are counted, and of rows that are there."""
        if self.cells:
            for name in piece.names:
                self.cells[name] = (*self.cells.get(name, ()), piece)
        else:
            self.cells = dict.fromkeys(piece.names, (piece,))

    def copy(self) -> "Group[E]":
        """The same group, which does not change with this one."""
        copied: Group[E] = Group(self.key)
        for name, value in vars(self).items():
            setattr(copied, name, value.copy() if isinstance(value, (dict, set)) else value)
        return copied

    def written(self, names: Iterable[str]) -> list[Piece[E]]:
        """The pieces of those of some columns that are there, each piece once."""
        return list(dict.fromkeys([piece for name in names for piece in self.cells.get(name, ())]))

    def settle(self, names: Iterable[str]) -> None:
        """Of a closed group: notes which of these columns every row has by now."""
        for name in names:
            pieces = self.cells[name]
            there = len(pieces[0].places) if len(pieces) == 1 else sum([len(piece.places) for piece in pieces])
            if there == self.rows or name in pieces[0].entries.shared:
                self.complete.add(name)

    def _refuse_shared(self, entries: E) -> None:
        for name in entries.shared:
            if name in self.cells:
                raise TransportError(f"{name!r} of group {self.key} is written already")

    def _unwritten(self, writing: Writing[E], name: str, version: int, repeat: bool) -> Piece[E]:
        """Those entries of a column whose cells are empty; without ``repeat`` all of them have to be."""
        places = writing.places
        there = np.isin(places, np.concatenate([piece.places for piece in self.cells[name]]))
        if not there.any():
            return Piece(places, writing.entries, [name], version)
        if not repeat:
            row = places[there][0]
            raise TransportError(f"{name!r} of row {row} of group {self.key} is written already")
        picks = np.flatnonzero(~there)
        return Piece(places[picks], writing.entries, [name], version, picks)

    def _check_lengths(self, places: IntArray, given: IntArray) -> None:
        known = self.lengths[places]
        wrong = np.flatnonzero((known != UNKNOWN_LENGTH) & (known != given))
        if wrong.size:
            row = wrong[0]
            raise TransportError(f"row {places[row]} of group {self.key} has {known[row]} tokens, not {given[row]}")


def _added(pieces: Iterable[Piece[E]]) -> slice | IntArray:
    """Which entries of a writing its pieces add to a row."""
    of_rows = [piece for piece in pieces if piece.places is not FIRST]
    if any([piece.picks is None for piece in of_rows]):
        return slice(None)
    picks = [piece.picks for piece in of_rows if piece.picks is not None]
    return np.unique(np.concatenate([np.empty(0, np.int64), *picks]))

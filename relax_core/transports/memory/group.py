"""One group's rows, column by column, as they arrive."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple

import numpy as np

from relax_core.api.columns import IntArray
from relax_core.api.errors import TransportError
from relax_core.transports.memory.schema import PLACE_BITS, Entries, P, Writing

UNKNOWN_LENGTH = -1
FIRST = range(1)
"""The place of a group column's entry."""


class Piece(NamedTuple, Generic[P]):
    """Entries of one column that were written in one step, all computed by the weights of one version.

    ``picks`` are the positions of those entries of ``part`` that count, where not all do.
    """

    places: range | IntArray
    part: P
    version: int
    picks: IntArray | None = None


Cells = list[Piece[P]]
"""The entries of one column in one group. A single piece is in the order of the rows."""


class Group(Generic[P]):
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
        self.cells: dict[str, Cells[P]] = {}
        self.complete: set[str] = set()
        self.offered: set[str] = set()
        self.acked: set[str] = set()
        self.attempts: Counter[str] = Counter()

    @property
    def lengths(self) -> IntArray:
        """int64 ``[rows]`` tokens of each row, ``UNKNOWN_LENGTH`` where no per-token column is written."""
        return np.full(self.rows, UNKNOWN_LENGTH) if self._lengths is None else self._lengths

    @lengths.setter
    def lengths(self, lengths: IntArray) -> None:
        self._lengths = lengths

    def append(self, rows: int, entries: Entries[P], version: int) -> range:
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
        for part in entries.rows:
            self._add(Piece(places, part, version))
        for part in entries.shared:
            self._add(Piece(FIRST, part, version))
        return places

    def pieces(self, writing: Writing[P], version: int, repeat: bool) -> list[Piece[P]]:
        """What :meth:`write` will add; with ``repeat`` that of it which is not there yet.

        Raises:
            TransportError: A row that is not there or has another number of tokens, or a cell that is written already.
        """
        if writing.places[-1] >= self.rows:
            raise TransportError(f"group {self.key} has {self.rows} rows, no row {writing.places[-1]}")
        if not repeat:
            self._refuse_shared(writing.entries)
        pieces = [self._unwritten(writing.places, part, version, repeat) for part in writing.entries.rows]
        shared = [part for part in writing.entries.shared if part.spec.name not in self.cells]
        found = [piece for piece in pieces if len(piece.places)] + [Piece(FIRST, part, version) for part in shared]
        if writing.entries.lengths is not None:
            self._check_lengths(found, writing.entries.lengths)
        return found

    def write(self, pieces: Sequence[Piece[P]], lengths: IntArray | None) -> None:
        """Adds checked pieces; ``lengths`` are those of all entries of their per-token columns."""
        for piece in pieces:
            if lengths is not None and piece.part.spec.level == "token":
                known = self.lengths.copy()  # not in place: it may be the writer's array
                known[piece.places] = lengths if piece.picks is None else lengths[piece.picks]
                self._lengths = known
            self._add(piece)

    def settle(self, names: Iterable[str]) -> None:
        """Of a closed group: notes which of these columns every row has by now."""
        for name in names:
            pieces = self.cells[name]
            whole = 1 if pieces[0].part.spec.level == "group" else self.rows
            if sum([len(piece.places) for piece in pieces]) == whole:
                self.complete.add(name)

    def _refuse_shared(self, entries: Entries[P]) -> None:
        for part in entries.shared:
            if part.spec.name in self.cells:
                raise TransportError(f"{part.spec.name!r} of group {self.key} is written already")

    def _unwritten(self, places: IntArray, part: P, version: int, repeat: bool) -> Piece[P]:
        pieces = self.cells.get(part.spec.name)
        if pieces is None:
            return Piece(places, part, version)
        there = np.isin(places, np.concatenate([piece.places for piece in pieces]))
        if not there.any():
            return Piece(places, part, version)
        if not repeat:
            row = places[there][0]
            raise TransportError(f"{part.spec.name!r} of row {row} of group {self.key} is written already")
        picks = np.flatnonzero(~there)
        return Piece(places[picks], part, version, picks)

    def _check_lengths(self, pieces: Iterable[Piece[P]], lengths: IntArray) -> None:
        for piece in pieces:
            if piece.part.spec.level == "token":
                known, given = self.lengths[piece.places], lengths if piece.picks is None else lengths[piece.picks]
                wrong = np.flatnonzero((known != UNKNOWN_LENGTH) & (known != given))
                if wrong.size:
                    row = wrong[0]
                    raise TransportError(
                        f"row {piece.places[row]} of group {self.key} has {known[row]} tokens, not {given[row]}"
                    )

    def _add(self, piece: Piece[P]) -> None:
        pieces = self.cells.get(piece.part.spec.name)
        if pieces is None:
            self.cells[piece.part.spec.name] = [piece]
        else:
            pieces.append(piece)
        self.nbytes += piece.part.nbytes

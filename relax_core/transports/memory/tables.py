"""Groups as a table, which is how a consumer sees them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import NO_VERSION, Column, ColumnSpec, IntArray, Table, join_offsets
from relax_core.api.errors import TransportError
from relax_core.api.transport import Lease
from relax_core.transports.memory.group import Group, Piece
from relax_core.transports.memory.schema import PLACE_BITS, Columns, row_ids

NONE = np.empty(0, np.int64)

Known = dict[tuple[int, ...], tuple[Sequence[Any], IntArray]]
"""What was made of some objects for a column before, by their identities; kept, so that these stay theirs."""


def table_of(groups: Sequence[Group[Columns]], specs: Sequence[ColumnSpec]) -> Table:
    """All rows of some groups with columns that are complete in each of them; ids ascend if the groups do.

    Where a column is held in one piece, its arrays are that piece's own; otherwise they are a copy, whose offsets and
    versions columns may share, read-only.
    """
    if len(groups) == 1 and len(pieces := groups[0].written([spec.name for spec in specs])) == 1:
        group, piece = groups[0], pieces[0]
        if piece.picks is None and len(piece.places) == group.rows:
            columns = {spec.name: piece.entries.by_name[spec.name] for spec in specs}
            return whole_table(group.key, group.rows, columns, piece.version)
    ids = np.concatenate([NONE, *(row_ids(group.key, range(group.rows)) for group in groups)])
    columns, versions, known = {}, {}, Known()
    for spec in specs:
        column, version = _joined(groups, spec, known)
        if spec.level == "group":
            spread = np.repeat(np.arange(len(groups)), [group.rows for group in groups])
            column, version = column.select(spread), None if version is None else version[spread]
        columns[spec.name] = column
        if version is not None:
            versions[spec.name] = version
    return Table(ids, ids >> PLACE_BITS, columns, versions)


def whole_table(group: int, rows: int, columns: Mapping[str, Column], version: int) -> Table:
    """The table of one group, all of whose rows got these columns in one step."""
    versions = {}
    if version != NO_VERSION:
        versions = dict.fromkeys(columns, _read_only(np.full(rows, version)))
    return Table(row_ids(group, range(rows)), np.full(rows, group), columns, versions)


def wanted_groups(lease: Lease, ids: npt.ArrayLike | None) -> tuple[IntArray | None, set[int] | None]:
    """The rows that a fetch asks for, and their groups; ``None`` for all of the lease.

    Raises:
        TransportError: A row is not the lease's.
    """
    if ids is None:
        return None, None
    wanted = np.asarray(ids, np.int64)
    if (strange := np.setdiff1d(wanted, lease.table.ids)).size:
        raise TransportError(f"row {strange[0]} is not part of lease {lease.key}")
    return wanted, set((wanted >> PLACE_BITS).tolist())


def wanted_rows(table: Table, wanted: IntArray | None) -> Table:
    """Those of the wanted rows that a table has, in the order asked for; its ids ascend."""
    if wanted is None:
        return table
    wanted = wanted[np.isin(wanted, table.ids)]
    return table.select(np.searchsorted(table.ids, wanted))


def picked(piece: Piece[Columns], name: str) -> Column:
    """Those entries of a column that count in a piece."""
    column = piece.entries.by_name[name]
    return column if piece.picks is None else column.select(piece.picks)


def _joined(groups: Sequence[Group[Columns]], spec: ColumnSpec, known: Known) -> tuple[Column, IntArray | None]:
    """One column of all groups in the order of their rows, and the versions of its entries, if any has one."""
    cells = [group.cells[spec.name] for group in groups]
    pieces = [piece for found in cells for piece in found]
    if not pieces:
        return Column.of(spec, []), None
    column = _end_to_end([picked(piece, spec.name) for piece in pieces], known)
    versions = _versions(pieces, known)
    if all([len(found) == 1 for found in cells]):
        return column, versions
    starts = np.repeat(np.cumsum([0, *(group.rows for group in groups[:-1])]), [len(found) for found in cells])
    order = np.argsort(
        np.concatenate([np.asarray(piece.places) + start for start, piece in zip(starts, pieces, strict=True)])
    )
    return column.select(order), None if versions is None else versions[order]


def _end_to_end(parts: Sequence[Column], known: Known) -> Column:
    """As :meth:`Column.concat`; columns that share their offsets share the joined ones, read-only, too."""
    if len(parts) == 1:
        return parts[0]
    values = np.concatenate([part.values for part in parts])
    offsets = [part.offsets for part in parts if part.offsets is not None]
    if not offsets:
        return Column(parts[0].spec, values)
    key = tuple(map(id, offsets))
    if key not in known:
        known[key] = offsets, _read_only(join_offsets(offsets))
    return Column(parts[0].spec, values, known[key][1])


def _versions(pieces: Sequence[Piece[Columns]], known: Known) -> IntArray | None:
    """Of each entry, read-only: columns that were written together share them."""
    if all([piece.version == NO_VERSION for piece in pieces]):
        return None
    key = tuple(map(id, pieces))
    if key not in known:
        counts = [len(piece.places) for piece in pieces]
        known[key] = pieces, _read_only(np.repeat([piece.version for piece in pieces], counts))
    return known[key][1]


def _read_only(array: IntArray) -> IntArray:
    array.flags.writeable = False
    return array

"""Groups as a table, which is how a consumer sees them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import NO_VERSION, Column, ColumnSpec, IntArray, Table
from relax_core.api.errors import TransportError
from relax_core.api.transport import Lease
from relax_core.transports.memory.group import Group, Piece
from relax_core.transports.memory.schema import PLACE_BITS, Columns, row_ids

NONE = np.empty(0, np.int64)


def table_of(groups: Sequence[Group[Columns]], specs: Sequence[ColumnSpec]) -> Table:
    """All rows of some groups with columns that are complete in each of them; ids ascend if the groups do.

    Where a column is held in one piece, its arrays are that piece's own; otherwise they are a copy.
    """
    if len(groups) == 1 and (table := _of_one(groups[0], specs)) is not None:
        return table
    ids = np.concatenate([NONE, *(row_ids(group.key, range(group.rows)) for group in groups)])
    columns, versions = {}, {}
    for spec in specs:
        column, version = _joined(groups, spec)
        if spec.level == "group":
            spread = np.repeat(np.arange(len(groups)), [group.rows for group in groups])
            column, version = column.select(spread), None if version is None else version[spread]
        columns[spec.name] = column
        if version is not None:
            versions[spec.name] = version
    return Table(ids, ids >> PLACE_BITS, columns, versions)


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


def _of_one(group: Group[Columns], specs: Sequence[ColumnSpec]) -> Table | None:
    """The table of one group, if each column is in one piece with an entry for each row: as it mostly is."""
    columns, versions, known = {}, {}, {}
    for spec in specs:
        name, pieces = spec.name, group.cells[spec.name]
        piece = pieces[0]
        if len(pieces) > 1 or piece.picks is not None or spec.level == "group":
            return None
        columns[name] = piece.entries.by_name[name]
        if piece.version != NO_VERSION:
            if piece.version not in known:  # columns that were written together share it
                known[piece.version] = _read_only(np.full(group.rows, piece.version))
            versions[name] = known[piece.version]
    return Table(row_ids(group.key, range(group.rows)), np.full(group.rows, group.key), columns, versions)


def _joined(groups: Sequence[Group[Columns]], spec: ColumnSpec) -> tuple[Column, IntArray | None]:
    """One column of all groups in the order of their rows, and the versions of its entries, if any has one."""
    pieces: list[tuple[int, Piece[Columns]]] = []
    base, in_order = 0, True
    for group in groups:
        cells = group.cells[spec.name]
        in_order &= len(cells) == 1
        pieces += [(base, piece) for piece in cells]
        base += group.rows
    parts = [picked(piece, spec.name) for _, piece in pieces]
    if not parts:
        return Column.of(spec, []), None
    column = parts[0] if len(parts) == 1 else Column.concat(parts)
    versions = None
    if any([piece.version != NO_VERSION for _, piece in pieces]):
        versions = np.concatenate([np.full(len(piece.places), piece.version) for _, piece in pieces])
    if in_order:
        return column, versions
    order = np.argsort(np.concatenate([np.asarray(piece.places) + start for start, piece in pieces]))
    return column.select(order), None if versions is None else versions[order]


def _read_only(array: IntArray) -> IntArray:
    array.flags.writeable = False
    return array

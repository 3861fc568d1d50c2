"""Groups as a table, which is how a consumer sees them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import NO_VERSION, Column, ColumnSpec, IntArray, Table
from relax_core.api.errors import TransportError
from relax_core.api.transport import Lease
from relax_core.transports.memory.group import Group, Piece
from relax_core.transports.memory.schema import PLACE_BITS

NONE = np.empty(0, np.int64)


def table_of(groups: Sequence[Group[Column]], specs: Sequence[ColumnSpec]) -> Table:
    """All rows of some groups with columns that are complete in each of them; ids ascend if the groups do.

    The arrays of the columns are read-only. Where a column is held in one piece they are that piece's own; otherwise
    they are a copy.
    """
    counts = [group.rows for group in groups]
    keys = np.repeat(np.array([group.key for group in groups], np.int64), counts)
    ends = np.cumsum(counts, dtype=np.int64)
    ids = (keys << PLACE_BITS) + np.arange(len(keys)) - np.repeat(ends - counts, counts)
    columns, versions = {}, {}
    for spec in specs:
        column, version = _joined(groups, spec)
        if spec.level == "group":
            spread = np.repeat(np.arange(len(groups)), counts)
            column, version = column.select(spread), version[spread]
        columns[spec.name] = _read_only(column)
        if (version != NO_VERSION).any():
            versions[spec.name] = version
    return Table(ids, keys, columns, versions)


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


def _joined(groups: Sequence[Group[Column]], spec: ColumnSpec) -> tuple[Column, IntArray]:
    """One column of all groups in the order of their rows, and the versions of its entries."""
    pieces: list[tuple[int, Piece[Column]]] = []
    base, in_order = 0, True
    for group in groups:
        cells = group.cells[spec.name].pieces
        in_order &= len(cells) == 1
        pieces += [(base, piece) for piece in cells]
        base += group.rows
    parts = [piece.part if piece.picks is None else piece.part.select(piece.picks) for _, piece in pieces]
    versions = np.repeat(np.array([piece.version for _, piece in pieces], np.int64), [len(part) for part in parts])
    if not parts:
        return Column.of(spec, []), versions
    column = parts[0] if len(parts) == 1 else Column.concat(parts)
    if in_order:
        return column, versions
    order = np.argsort(np.concatenate([piece.places + start for start, piece in pieces]))
    return column.select(order), versions[order]


def _read_only(column: Column) -> Column:
    for array in (column.values, column.offsets):
        if array is not None:
            array.flags.writeable = False
    return column

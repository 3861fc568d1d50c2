"""What a transport holds as plain values and arrays, and back: one long array per column, not one per group."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from relax_core.api.columns import Column, ColumnSpec
from relax_core.api.errors import TransportError
from relax_core.dataflow.ids import IdSet
from relax_core.transports.memory.blobs import Blobs
from relax_core.transports.memory.declarations import Declarations
from relax_core.transports.memory.group import Group, Piece
from relax_core.transports.memory.index import Held
from relax_core.transports.memory.packing import read_only
from relax_core.transports.memory.schema import Columns, cut
from relax_core.transports.memory.tables import picked


def snapshot_of(declared: Declarations, held: Held[Columns], blobs: Blobs[bytes]) -> dict[str, Any]:
    """Everything, of plain values and arrays only."""
    return {
        **_declarations(declared),
        **_rows(held.groups.values(), declared),
        "blobs": {key: np.frombuffer(blob.data, np.uint8) for key, blob in blobs.held.items()},
        "blob_holders": {key: np.array(sorted(blob.holders), np.int64) for key, blob in blobs.held.items()},
        "finished": held.finished,
        "gone_below": held.gone.below,
        "gone_beyond": np.array(sorted(held.gone.beyond), np.int64),
        "dropped": np.array(sorted(held.dropped), np.int64),
    }


def restored(snapshot: Mapping[str, Any], declared: Declarations) -> tuple[Held[Columns], Blobs[bytes]]:
    """What :func:`snapshot_of` was given; no consumer has been offered a group.

    Raises:
        TransportError: The snapshot was taken with other declarations.
    """
    for kind, here in _declarations(declared).items():
        if snapshot.get(kind) != here:
            raise TransportError(f"the snapshot was taken with other {kind}: {snapshot.get(kind)}, here {here}")
    blobs: Blobs[bytes] = Blobs()
    for key, data in snapshot["blobs"].items():
        blobs.put(key, data.tobytes(), data.nbytes, snapshot["blob_holders"][key].tolist())
    gone = IdSet(int(snapshot["gone_below"]), snapshot["gone_beyond"].tolist())
    dropped = set(snapshot["dropped"].tolist())
    return Held(_groups_of(snapshot, declared), gone, dropped, bool(snapshot["finished"])), blobs


def _declarations(declared: Declarations) -> dict[str, Any]:
    """Columns and consumers by name; equal if the declarations are."""
    state = declared.state()
    return {
        "columns": sorted(state["columns"]),
        "consumers": sorted([name, reads] for name, reads, _ in state["consumers"]),
    }


def _rows(groups: Iterable[Group[Columns]], declared: Declarations) -> dict[str, Any]:
    """Groups and their cells. ``acked`` and ``attempts`` are ``[groups, consumers]``, consumers by name."""
    held = sorted(groups, key=lambda group: group.key)
    consumers = sorted(declared.consumers)
    return {
        "groups": np.array([group.key for group in held], np.int64),
        "rows": np.array([group.rows for group in held], np.int64),
        "closed": np.array([group.closed for group in held], bool),
        "lengths": np.concatenate([np.empty(0, np.int64), *(group.lengths for group in held)]),
        "acked": np.array([[name in group.acked for name in consumers] for group in held], bool),
        "attempts": np.array([[group.attempts.get(name, 0) for name in consumers] for group in held], np.int64),
        "cells": {spec.name: _cells(held, spec) for spec in declared.columns},
    }


def _cells(groups: Sequence[Group[Columns]], spec: ColumnSpec) -> dict[str, Any]:
    """All entries of one column; ``owners`` and ``places`` say to which group and row each belongs."""
    cells = [(group.key, group.cells[spec.name]) for group in groups if spec.name in group.cells]
    held = [(key, piece) for key, pieces in cells for piece in pieces]
    counts = [len(piece.places) for _, piece in held]
    column = Column.concat([Column.of(spec, []), *(picked(piece, spec.name) for _, piece in held)])
    return {
        "owners": np.repeat(np.array([key for key, _ in held], np.int64), counts),
        "places": np.concatenate([np.empty(0, np.int64), *(piece.places for _, piece in held)]),
        "versions": np.repeat(np.array([piece.version for _, piece in held], np.int64), counts),
        "values": column.values,
        **({} if column.offsets is None else {"offsets": column.offsets}),
    }


def _groups_of(snapshot: Mapping[str, Any], declared: Declarations) -> dict[int, Group[Columns]]:
    """The groups of a snapshot, with their cells."""
    groups: dict[int, Group[Columns]] = {}
    consumers = sorted(declared.consumers)
    lengths = np.split(snapshot["lengths"], np.cumsum(snapshot["rows"])[:-1])
    for number, key in enumerate(snapshot["groups"].tolist()):
        group = groups[key] = Group(key)
        group.rows = int(snapshot["rows"][number])
        group.closed = bool(snapshot["closed"][number])
        group.lengths = lengths[number].copy()
        group.acked = {name for name, acked in zip(consumers, snapshot["acked"][number], strict=True) if acked}
        attempts = zip(consumers, snapshot["attempts"][number].tolist(), strict=True)
        group.attempts = {name: times for name, times in attempts if times}
    for spec in declared.columns:
        _fill(groups, spec, snapshot["cells"][spec.name])
    return groups


def _fill(groups: Mapping[int, Group[Columns]], spec: ColumnSpec, stored: Mapping[str, Any]) -> None:
    column = Column(spec, stored["values"], stored.get("offsets"))
    owners, places, versions = stored["owners"], stored["places"], stored["versions"]
    if not len(owners):
        return
    # A piece has one group and one version, and its places ascend.
    new = (owners[1:] != owners[:-1]) | (versions[1:] != versions[:-1]) | (places[1:] <= places[:-1])
    borders = [0, *(np.flatnonzero(new) + 1).tolist(), len(owners)]
    for start, stop in pairwise(borders):
        group = groups[int(owners[start])]
        entries = Columns.of([_copy(cut(column, start, stop))])
        group.add(Piece(places[start:stop].copy(), entries, [spec.name], int(versions[start])))
        group.nbytes += entries.nbytes


def _copy(column: Column) -> Column:
    return read_only(Column(column.spec, column.values.copy(), column.offsets))

"""What a transport holds as plain values and arrays, and back: one long array per column, not one per group."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from relax_core.api.columns import Column, ColumnSpec
from relax_core.api.transport import Consumer
from relax_core.transports.memory.blobs import Blobs
from relax_core.transports.memory.group import Cells, Group
from relax_core.transports.memory.schema import column_bytes, cut


def declarations(columns: Iterable[ColumnSpec], consumers: Iterable[Consumer]) -> dict[str, Any]:
    """Columns and consumers, as a snapshot names them; equal if the declarations are."""
    return {
        "columns": [
            [spec.name, spec.dtype, spec.level, list(spec.trailing), spec.ragged]
            for spec in sorted(columns, key=lambda spec: spec.name)
        ],
        "consumers": [[consumer.name, sorted(consumer.reads)] for consumer in sorted(consumers, key=lambda c: c.name)],
    }


def rows(groups: Iterable[Group], columns: Iterable[ColumnSpec], consumers: Iterable[str]) -> dict[str, Any]:
    """Groups and their cells. ``acked`` and ``attempts`` are ``[groups, consumers]``, consumers by name."""
    held = sorted(groups, key=lambda group: group.key)
    return {
        "groups": np.array([group.key for group in held], np.int64),
        "rows": np.array([group.rows for group in held], np.int64),
        "closed": np.array([group.closed for group in held], bool),
        "lengths": np.concatenate([np.empty(0, np.int64), *(group.lengths for group in held)]),
        "acked": np.array([[name in group.acked for name in sorted(consumers)] for group in held], bool),
        "attempts": np.array([[group.attempts[name] for name in sorted(consumers)] for group in held], np.int64),
        "cells": {spec.name: _cells(held, spec) for spec in columns},
    }


def _cells(groups: Sequence[Group], spec: ColumnSpec) -> dict[str, Any]:
    """All entries of one column; ``owners`` and ``places`` say to which group and row each belongs."""
    held = [(group.key, group.cells[spec.name]) for group in groups if spec.name in group.cells]
    empty = np.empty(0, np.int64)
    column = Column.concat([Column.of(spec, []), *(part for _, cells in held for part in cells.parts)])
    return {
        "owners": np.repeat(np.array([key for key, _ in held], np.int64), [cells.count for _, cells in held]),
        "places": np.concatenate([empty, *(places for _, cells in held for places in cells.places)]),
        "versions": np.concatenate([empty, *(version for _, cells in held for version in cells.versions)]),
        "values": column.values,
        **({} if column.offsets is None else {"offsets": column.offsets}),
    }


def groups_of(snapshot: Mapping[str, Any], columns: Iterable[ColumnSpec], consumers: Iterable[str]) -> list[Group]:
    """The groups of a snapshot, with their cells; no consumer has been offered one."""
    groups = {}
    lengths = np.split(snapshot["lengths"], np.cumsum(snapshot["rows"])[:-1])
    for number, key in enumerate(snapshot["groups"].tolist()):
        group = groups[key] = Group(key)
        group.rows = int(snapshot["rows"][number])
        group.closed = bool(snapshot["closed"][number])
        group.lengths = lengths[number].copy()
        group.acked = {name for name, acked in zip(sorted(consumers), snapshot["acked"][number], strict=True) if acked}
        group.attempts.update(dict(zip(sorted(consumers), snapshot["attempts"][number].tolist(), strict=True)))
    for spec in columns:
        _fill(groups, spec, snapshot["cells"][spec.name])
    return list(groups.values())


def _fill(groups: Mapping[int, Group], spec: ColumnSpec, stored: Mapping[str, Any]) -> None:
    column = Column(spec, stored["values"], stored.get("offsets"))
    keys, starts, counts = np.unique(stored["owners"], return_index=True, return_counts=True)
    for key, start, stop in zip(keys.tolist(), starts, starts + counts, strict=True):
        cells = groups[key].cells[spec.name] = Cells()
        part = cut(column, start, stop)
        cells.add(stored["places"][start:stop].copy(), part, stored["versions"][start:stop].copy())
        groups[key].bytes += column_bytes(part)


def blobs(held: Blobs) -> dict[str, Any]:
    """Blobs by key, as bytes and references."""
    return {
        "blobs": {key: np.frombuffer(data, np.uint8) for key, data in held.data.items()},
        "blob_references": dict(held.references),
    }


def blobs_of(snapshot: Mapping[str, Any]) -> Blobs:
    """The blobs of a snapshot."""
    restored = Blobs()
    for key, data in snapshot["blobs"].items():
        restored.put(key, data.tobytes(), int(snapshot["blob_references"][key]))
    return restored

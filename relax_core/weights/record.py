"""The record of what an engine that starts late needs: publications that all engines have acknowledged."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from relax_core.api.weights import Bucket, Publication
from relax_core.checkpoint.files import write_atomically
from relax_core.weights.manifest import from_json, to_json


def write_record(path: Path, publications: Sequence[Publication], place: Callable[[Any], Any]) -> None:
    """Says where some publications are, for processes that start later.

    Args:
        path: Of the record; a reader sees the old one or the new one.
        publications: A full one, and the deltas after it, in order.
        place: Where the buckets of one are, as JSON values.
    """
    stored = [{"manifest": to_json(each.manifest), "buckets": place(each.buckets)} for each in publications]
    write_atomically(path, json.dumps(stored))


def read_record(path: Path, buckets: Callable[[Any], Iterable[Bucket]]) -> list[Publication]:
    """The publications of :func:`write_record`; none where there is no record.

    Args:
        path: Of the record.
        buckets: Those at a place.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [Publication(from_json(stored["manifest"]), buckets(stored["buckets"])) for stored in json.loads(content)]

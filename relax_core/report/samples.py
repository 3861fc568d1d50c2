"""Rows of some stored batches, for the sample browser."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import Table
from relax_core.api.errors import RelaxError
from relax_core.api.rows import StopReason
from relax_core.checkpoint.batches import BatchRecord, BatchStore
from relax_core.dataflow.columns import SEGMENTS
from relax_core.dataflow.staleness import Staleness
from relax_core.report.files import evenly
from relax_core.report.media import ShownMedia
from relax_core.roles.tasks import unpack_task

MAX_BATCHES = 12
MAX_ROWS = 16
"""Rows of a batch that a page shows, by whole groups as far as they fit."""

MAX_TOKENS = 60_000
"""Tokens of all rows that a page shows; they make up most of its size."""

NUMBERS = ("rollout_logprobs", "old_logprobs", "ref_logprobs", "trainer_logprobs", "advantages")
"""Columns with a number for each token, or for each row."""

DIGITS = 4

TokenText = Callable[[int], str]


def read_samples(directory: Path, text: TokenText | None) -> dict[str, Any]:
    """The chosen batches with their rows; ``texts``, the text of each token id in them; ``media``, which rows name by
    place; what is ``damaged``.

    Args:
        directory: Folder of the run's :class:`relax_core.checkpoint.batches.BatchStore`.
        text: Text of a token id; without it ids stand for themselves.
    """
    store = BatchStore(directory, keep=1)
    numbers = store.numbers()
    chosen = evenly(numbers, MAX_BATCHES)
    budget = MAX_TOKENS // max(1, len(chosen))
    batches, damaged, media = [], [], ShownMedia()
    for number in chosen:
        try:
            batches.append(_batch(store.load(number), budget, media))
        except RelaxError as error:
            damaged.append(str(error))
    ids = {token for batch in batches for row in batch["rows"] for token in row["tokens"]}
    texts = {str(token): text(token) if text else f"<{token}>" for token in sorted(ids)}
    return {"batches": batches, "texts": texts, "media": media.entries, "total": len(numbers), "damaged": damaged}


def _batch(record: BatchRecord, budget: int, media: ShownMedia) -> dict[str, Any]:
    places = _choose_rows(record.table, budget)
    table, used = record.table.select(places), _updates_of_rows(record)
    of_batch = [
        {"lag": lag, "updates": used.get(place, [])} for lag, place in zip(_lags(record, places), places, strict=True)
    ]
    return {
        "batch": record.batch,
        "first_update": record.first_update,
        "last_update": record.last_update,
        "version": record.version,
        "temperature": record.temperature,
        "rows": [{**_row(table, row, budget, media), **facts} for row, facts in enumerate(of_batch)],
        "total": len(record.table),
    }


def _lags(record: BatchRecord, places: Sequence[int]) -> list[int | None]:
    """Lag of each row; none where no engine sampled it."""
    table, staleness = record.table.select(places), Staleness(republished=list(record.republished))
    return staleness.lags(table, record.version).tolist() if SEGMENTS.name in table else [None] * len(table)


def _choose_rows(table: Table, budget: int) -> list[int]:
    """Whole groups at equal distances, as many as fit; of a single larger one its first rows."""
    groups = list(dict.fromkeys(table.groups.tolist()))
    lengths = table["tokens"].lengths
    per_group, tokens_per_group = len(table) / len(groups), lengths.sum() / len(groups)
    fit = int(min(MAX_ROWS // per_group, budget // max(1, tokens_per_group)))
    chosen = evenly(groups, max(1, fit))
    rows = np.concatenate([np.flatnonzero(table.groups == group) for group in chosen])[:MAX_ROWS]
    whole = int(np.searchsorted(np.cumsum(lengths[rows]), budget, side="right"))
    return [int(place) for place in rows[: max(1, whole)]]


def _updates_of_rows(record: BatchRecord) -> dict[int, list[int]]:
    """The updates that used each row, by its position."""
    used: dict[int, list[int]] = {}
    for update, plan in enumerate(record.updates, record.first_update):
        for place in (int(place) for rank in plan.ranks for micro_batch in rank for place in micro_batch):
            used.setdefault(place, []).append(update)
    return used


def _row(table: Table, place: int, budget: int, media: ShownMedia) -> dict[str, Any]:
    tokens = table["tokens"][place]
    scored = bool(table["scored"][place]) if "scored" in table else True
    task = unpack_task(table["task"][place]) if "task" in table else None
    return {
        "id": int(table.ids[place]),
        "group": int(table.groups[place]),
        "tokens": tokens[:budget].tolist(),
        "length": len(tokens),
        "mask": table["loss_mask"][place][:budget].astype(int).tolist(),
        "segments": table["segments"][place].tolist() if "segments" in table else [],
        "stop": StopReason(int(table["stop_reason"][place])).name.lower() if "stop_reason" in table else None,
        "reward": float(table["reward"][place]) if "reward" in table and scored else None,
        "parts": _parts(table, place),
        "label": task.label if task else None,
        "media": media.places(task.media if task else ()),
        "numbers": {name: _numbers(table[name][place], budget) for name in NUMBERS if name in table},
    }


def _parts(table: Table, place: int) -> Mapping[str, Any]:
    if "reward_parts" not in table:
        return {}
    parts: Mapping[str, Any] = json.loads(table["reward_parts"][place].tobytes() or b"{}")
    return parts


def _numbers(entry: npt.NDArray[np.generic], budget: int) -> list[float | None] | float | None:
    """One number for each token, or a single one for the row; what is not finite has none."""
    values = entry.astype(np.float64)
    if values.ndim == 0:
        return _rounded(float(values))
    return [_rounded(value) for value in values[:budget].tolist()]


def _rounded(value: float) -> float | None:
    return round(value, DIGITS) if np.isfinite(value) else None

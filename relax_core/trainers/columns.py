"""Per-token columns out of what a model computed at trainable tokens alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relax_core.api.columns import Column, ColumnSpec
from relax_core.api.tokens import trainable_positions
from relax_core.api.trainer import MicroBatch


def column_of(name: str, batches: Sequence[MicroBatch], computed: Sequence[np.ndarray]) -> Column:
    """A float32 column for all rows of all micro-batches, zero at places that are not trainable.

    Args:
        name: Of the column.
        batches: In order.
        computed: ``[N]`` for the N trainable tokens of each micro-batch that has any.
    """
    remaining = iter(computed)
    parts, lengths = [np.empty(0, np.float32)], [np.zeros(1, np.int64)]
    for batch in batches:
        positions = trainable_positions(batch.table)
        values = np.zeros(len(batch.table["tokens"].values), np.float32)
        if len(positions):
            values[positions] = next(remaining)
        parts.append(values)
        lengths.append(batch.table["tokens"].lengths)
    return Column(ColumnSpec(name, "float32"), np.concatenate(parts), np.cumsum(np.concatenate(lengths)))

"""Media of a micro-batch in the model's input: each once where rows share it, in the order of their placeholders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relax_core.api.columns import IntArray, Table
from relax_core.api.errors import TrainingError
from relax_core.api.media import Encoded
from relax_core.api.tokens import trainable_positions
from relax_core.models.media_inputs import MediaInputs
from relax_core.trainers.layout import Slots
from relax_core.trainers.sharing import Rows


@dataclass(frozen=True)
class Seen:
    """What a model is given beside tokens.

    Args:
        arguments: Of its ``forward``: what it sees and hears.
        position_ids: ``[3, B, L]`` for an input of ``[B, L]``: time, height and width.
    """

    arguments: Mapping[str, Tensor]
    position_ids: Tensor


def see(slots: Slots, media: Mapping[int, Sequence[Encoded]], inputs: MediaInputs) -> Seen:
    """The media of those rows that the model is shown; :func:`check_media` has seen that their placeholders are theirs.

    Args:
        slots: Of an input with placeholders.
        media: By group.
        inputs: Of the model.
    """
    rows = slots.rows
    begins = {int(row): int(slots.slots[rows.starts[row]]) for row in np.flatnonzero(rows.media_end)}
    # Rows that share their media begin at one slot, and the model reads slots in order.
    shown = dict(sorted((begin, row) for row, begin in begins.items()))
    arguments = inputs.arguments([each for row in shown.values() for each in _fed(rows, row, media, inputs)])
    of_shown = inputs.places([_tokens(rows, row) for row in shown.values()], arguments)
    places = dict(zip(shown, of_shown, strict=True))
    positions = torch.as_tensor(rows.place).to(of_shown[0].begin.dtype).expand(3, -1).clone()
    for row, begin in begins.items():
        start, length = int(rows.starts[row]), int(rows.last[row])
        positions[:, start : start + length] = places[begin].of(length)
    return Seen(arguments, torch.stack([slots.filled(axis.numpy()) for axis in positions]))


def check_media(table: Table, media: Mapping[int, Sequence[Encoded]], inputs: MediaInputs) -> None:
    """Looks at every row, also of text alone.

    Raises:
        TrainingError: The placeholders of a row are not those of its group's media; or one is to be trained, which no
            engine can have drawn.
    """
    tokens = table["tokens"]
    held = np.isin(tokens.values, inputs.placeholders)
    if np.any(held[trainable_positions(table)]):
        raise TrainingError("a placeholder of a medium is marked as trainable; no engine may draw one")
    if not media and not held.any():
        return
    for row, group in enumerate(table.groups):
        if problem := inputs.problem(tokens[row].astype(np.int64), media.get(int(group), ())):
            raise TrainingError(f"row {table.ids[row]} of group {group}: {problem}")


def _tokens(rows: Rows, row: int) -> IntArray:
    """What the model is shown of a row."""
    return rows.tokens[rows.starts[row] : rows.starts[row] + rows.last[row]].astype(np.int64)


def _fed(rows: Rows, row: int, media: Mapping[int, Sequence[Encoded]], inputs: MediaInputs) -> Iterator[Encoded]:
    """The media of a row up to its last trainable token."""
    left = int(np.isin(_tokens(rows, row), inputs.placeholders).sum())
    for each in media[int(rows.groups[row])]:
        if left <= 0:
            return
        left -= each.places
        yield each

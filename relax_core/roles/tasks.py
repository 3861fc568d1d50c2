"""A task as a column and back: UTF-8 JSON, so that a reward anywhere sees what the source saw."""

import json

import numpy as np
import numpy.typing as npt

from relax_core.api.media import Medium
from relax_core.api.rows import Task


def pack_task(task: Task) -> npt.NDArray[np.uint8]:
    """uint8 ``[length]``; ``TypeError`` when label or metadata are not JSON values."""
    fields = {"index": task.index, "prompt": task.prompt, "label": task.label, "metadata": dict(task.metadata)}
    if task.media:
        fields["media"] = [[medium.kind, medium.source] for medium in task.media]
    return np.frombuffer(json.dumps(fields).encode("ascii"), np.uint8)


def unpack_task(data: npt.NDArray[np.generic]) -> Task:
    """The task packed by :func:`pack_task`."""
    fields = json.loads(data.tobytes())
    return Task(**{**fields, "media": tuple(Medium(*each) for each in fields.get("media", ()))})

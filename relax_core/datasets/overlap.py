"""Whether held-out tasks are really held out."""

import json
import time
from collections.abc import Sequence

from relax_core.api.dataset import Dataset
from relax_core.api.rows import Task


def overlap(dataset: Dataset, held_out: Sequence[Task], seconds: float) -> int:
    """How many held-out tasks have a prompt, with the same media, that is also in the dataset.

    Args:
        dataset: Training tasks.
        held_out: Tasks of the evaluation.
        seconds: After so long the search ends with what it has found, since making a task may be slow.
    """
    prompts = {_key(task) for task in held_out}
    found: set[str] = set()
    deadline = time.monotonic() + seconds
    for index in range(len(dataset)):
        key = _key(dataset[index])
        if key in prompts:
            found.add(key)
        if time.monotonic() > deadline or len(found) == len(prompts):
            break
    return sum(_key(task) in found for task in held_out)


def _key(task: Task) -> str:
    media = [[medium.kind, medium.source] for medium in task.media]
    return json.dumps([task.prompt, media] if media else task.prompt, sort_keys=True)

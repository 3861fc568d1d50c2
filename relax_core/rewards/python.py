"""The reward a user writes: a plain function in a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from relax_core.api.context import Context
from relax_core.api.reward import Reward
from relax_core.api.rows import Sample, Score
from relax_core.rewards.config import PythonRewardConfig
from relax_core.rewards.processes import WorkerPool
from relax_core.rewards.user_function import load_user_function


class PythonReward(Reward):
    """Calls the function once per trajectory, in worker processes under a hard time limit.

    The function returns a number, ``None`` to abstain, or a mapping with ``reward`` and further named numbers for the
    metrics. ``stop_reason`` is the lower-case name of a :class:`~relax_core.api.rows.StopReason`. What it prints
    goes to stderr.
    """

    def __init__(self, config: PythonRewardConfig, context: Context) -> None:
        self.function = config.function
        place, _, name = config.function.rpartition(":")
        if place.endswith(".py"):
            place = str(Path(place).absolute())
        self._pool = WorkerPool(
            load_user_function, (f"{place}:{name}",), config.workers, config.timeout_seconds, context.count
        )

    async def start(self) -> None:
        await self._pool.start()

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        calls = [(f"reward {self.function}, task {sample.task.index}:", (arguments(sample),)) for sample in samples]
        return [Score(value, parts) for value, parts in await self._pool.call_all(calls)]

    async def close(self) -> None:
        await self._pool.close()


def arguments(sample: Sample) -> dict[str, Any]:
    """Everything a function may ask for by name."""
    return {
        "prompt": sample.task.prompt,
        "response": sample.text,
        "label": sample.task.label,
        "metadata": dict(sample.task.metadata),
        "token_ids": [int(token) for token in sample.token_ids],
        "stop_reason": sample.stop_reason.name.lower(),
        "task_index": sample.task.index,
    }

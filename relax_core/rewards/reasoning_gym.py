"""The scorer that each task of reasoning-gym brings along, in worker processes."""

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import regex

from relax_core.api.context import Context
from relax_core.api.errors import PluginError, RewardError
from relax_core.api.reward import Reward
from relax_core.api.rows import Sample, Score
from relax_core.rewards.config import ReasoningGymRewardConfig
from relax_core.rewards.processes import WorkerPool

METADATA_KEY = "reasoning_gym"
"""Where a task's metadata say which entry of which reasoning-gym dataset it is: ``task``, ``arguments``, ``index``."""


class ReasoningGymReward(Reward):
    """What ``score_answer`` of the task's own dataset gives, usually 0 to 1, often with partial credit.

    Some scorers evaluate the text with sympy, so all of them run in worker processes. The worker makes the entry
    again from the task's metadata, since a few entries (``arc_agi``, ``rearc``) do not survive JSON.

    Parts: ``extracted`` 1 when the text has an answer.
    """

    def __init__(self, config: ReasoningGymRewardConfig, context: Context) -> None:
        self._pool = WorkerPool(load_scorer, (config.extract,), config.workers, config.timeout_seconds, context.count)

    async def start(self) -> None:
        if find_spec("reasoning_gym") is None:
            raise PluginError('reward reasoning_gym needs reasoning-gym: pip install "relax-core[tasks]"')
        await self._pool.start()

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        calls = [
            (f"reward reasoning_gym, task {sample.task.index}:", (_source(sample), sample.text)) for sample in samples
        ]
        scores = await self._pool.call_all(calls)
        return [Score(value, {"extracted": float(extracted)}) for value, extracted in scores]

    async def close(self) -> None:
        await self._pool.close()


def _source(sample: Sample) -> tuple[str, str, int]:
    source: Any = sample.task.metadata.get(METADATA_KEY)
    try:
        return source["task"], json.dumps(source["arguments"], sort_keys=True), source["index"]
    except (KeyError, TypeError):
        raise RewardError(
            f"reward reasoning_gym, task {sample.task.index}: metadata.{METADATA_KEY} is {source!r}, but only tasks of "
            "the dataset reasoning_gym can be scored"
        ) from None


def load_scorer(extract: str | None) -> Callable[[tuple[str, str, int], str], tuple[float, bool]]:
    """``((task, arguments as JSON, index), text) -> (score, extracted)``, for a worker; imports reasoning-gym."""
    import reasoning_gym

    pattern = None if extract is None else regex.compile(extract, regex.DOTALL)

    @lru_cache(maxsize=16)
    def dataset(task: str, arguments: str) -> Any:
        return reasoning_gym.create_dataset(task, **json.loads(arguments))

    @lru_cache(maxsize=256)
    def entry(task: str, arguments: str, index: int) -> dict[str, Any]:
        item: dict[str, Any] = dataset(task, arguments)[index]
        return item

    def score(source: tuple[str, str, int], text: str) -> tuple[float, bool]:
        answer = _extracted(pattern, text)
        return float(dataset(*source[:2]).score_answer(answer, entry(*source))), answer is not None

    return score


def _extracted(pattern: regex.Pattern[str] | None, text: str) -> str | None:
    if pattern is None:
        return text.strip()
    matches = list(pattern.finditer(text))
    return (matches[-1][1] if pattern.groups else matches[-1][0]) if matches else None

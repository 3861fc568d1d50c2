"""The evaluator measures the policy on held-out tasks with sampling parameters of its own."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from relax_core.api.dataset import Dataset
from relax_core.api.engine import Engine, GenerateRequest, RequestClass, SamplingParameters
from relax_core.api.errors import DeadlineExceeded
from relax_core.api.rows import Sample, Task
from relax_core.dataflow.seeds import derive_seed
from relax_core.models.prompts import PromptCodec
from relax_core.roles.scoring import GroupScores, Scorer

Result = TypeVar("Result")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evaluation:
    """Result of one evaluation.

    Args:
        score: Mean reward over all trajectories that were scored; ``None`` if none was.
        metrics: TensorBoard tags with values.
        example: One prompt, answer and score in words.
    """

    score: float | None
    metrics: dict[str, float]
    example: str


class Evaluator:
    """Never touches training rows, cursor or sampling parameters.

    Args:
        dataset: Held-out tasks.
        engine: Generates, with request class ``eval``.
        codec: Encodes and decodes.
        scorer: Rewards.
        sampling: How tokens are drawn.
        samples_per_task: Trajectories per task.
        tasks: Only the first so many tasks; ``None`` for all.
        seed: Base seed.
        timeout: Seconds for one evaluation.
    """

    def __init__(
        self,
        dataset: Dataset,
        engine: Engine,
        codec: PromptCodec,
        scorer: Scorer,
        sampling: SamplingParameters,
        samples_per_task: int,
        tasks: int | None,
        seed: int,
        timeout: float,
    ) -> None:
        self.tasks = [dataset[index] for index in range(min(len(dataset), tasks or len(dataset)))]
        self._engine = engine
        self._codec = codec
        self._scorer = scorer
        self._sampling = sampling
        self._samples_per_task = samples_per_task
        self._seed = seed
        self._timeout = timeout

    async def evaluate(self) -> Evaluation:
        """Generates and scores every task.

        Raises:
            DeadlineExceeded: It took too long.
            RewardError: A reward failed whose ``on_error`` is ``fail``; with ``drop`` its task is left out and counted.
        """
        try:
            async with asyncio.timeout(self._timeout):
                groups = await _all(self._task(task) for task in self.tasks)
        except TimeoutError as error:
            raise DeadlineExceeded(f"timeouts.generation: the evaluation took more than {self._timeout:g} s") from error
        samples = [sample for group, _ in groups for sample in group]
        scores = [score for _, result in groups for score in result.scores]
        values = [score.value for score in scores if score.value is not None]
        mean = float(np.mean(values)) if values else None
        metrics = {"eval/response_tokens": float(np.mean([len(sample.token_ids) for sample in samples]))}
        if mean is not None:
            metrics["eval/reward"] = mean
        if len(values) < len(scores):
            metrics["eval/abstained"] = float(len(scores) - len(values))
        if dropped := [result.error for _, result in groups if result.error is not None]:
            metrics["eval/dropped"] = float(len(dropped))
            logger.warning("evaluation: %d tasks dropped, the first: %s", len(dropped), dropped[0])
        (first, *_), result = groups[0]
        reward = result.scores[0].value if result.scores else None
        return Evaluation(mean, metrics, f"{first.task.prompt!r} -> {first.text!r}, reward {reward}")

    async def _task(self, task: Task) -> tuple[list[Sample], GroupScores]:
        prompt = tuple(self._codec.encode_prompt(task))
        requests = [
            GenerateRequest(
                key=f"eval/{task.index}/{sample}",
                prompt_ids=prompt,
                sampling=self._sampling,
                seed=derive_seed(self._seed, "eval", task.index, sample),
                request_class=RequestClass.EVAL,
            )
            for sample in range(self._samples_per_task)
        ]
        generations = await asyncio.gather(*(self._engine.generate(request) for request in requests))
        samples = [Sample(task, self._codec.decode(g.token_ids), g.token_ids, g.stop_reason) for g in generations]
        return samples, await self._scorer.score(samples)


async def _all(tasks: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Results in order, or the first error, after all have ended: training must not find the engine still at work."""
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]

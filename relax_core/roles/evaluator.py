"""The evaluator measures the policy on held-out tasks with sampling parameters of its own."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from relax_core.api.engine import Engine, GenerateRequest, RequestClass, SamplingParameters
from relax_core.api.errors import DeadlineExceeded
from relax_core.api.media import MediaError
from relax_core.api.rows import Sample, Task
from relax_core.dataflow.seeds import derive_seed
from relax_core.roles.collaborators import Prompts
from relax_core.roles.scoring import GroupScores, Scorer

Result = TypeVar("Result")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HeldOut:
    """One set of held-out tasks, and how it is sampled.

    Args:
        name: Tells it from other sets; empty for the only one.
        tasks: At least one.
        sampling: How tokens are drawn.
        samples_per_task: Trajectories per task.
    """

    name: str
    tasks: Sequence[Task]
    sampling: SamplingParameters
    samples_per_task: int

    @property
    def tag(self) -> str:
        """What its metrics are under: ``eval``, or ``eval/<name>``."""
        return f"eval/{self.name}" if self.name else "eval"


@dataclass(frozen=True)
class Evaluation:
    """Result of one evaluation.

    Args:
        score: Mean reward over all trajectories that were scored; ``None`` if none was.
        metrics: By name, without the tag of the set.
        example: One prompt, answer and score in words.
    """

    score: float | None
    metrics: dict[str, float]
    example: str


class Evaluator:
    """Never touches training rows, cursor, sampling parameters or random state; its requests are of class ``eval``.

    Training requests may be in the engine at the same time, and publications may come in between.

    Args:
        held_out: What is asked.
        engine: Generates.
        prompts: Encodes and decodes.
        scorer: Rewards.
        seed: Base seed.
        timeout: Seconds for one evaluation.
    """

    def __init__(
        self, held_out: HeldOut, engine: Engine, prompts: Prompts, scorer: Scorer, seed: int, timeout: float
    ) -> None:
        self.held_out = held_out
        self._engine = engine
        self._prompts = prompts
        self._scorer = scorer
        self._seed = seed
        self._timeout = timeout

    async def evaluate(self) -> Evaluation:
        """Generates and scores every task.

        Raises:
            DeadlineExceeded: It took too long.
            RelaxError: The engine failed, or a reward whose ``on_error`` is ``fail``; with ``drop`` its task is left
                out and counted.
        """
        try:
            async with asyncio.timeout(self._timeout):
                answers = await _all(self._task(task) for task in self.held_out.tasks)
        except TimeoutError as error:
            raise DeadlineExceeded(f"timeouts.generation: the evaluation took more than {self._timeout:g} s") from error
        if dropped := [answer.scores.error for answer in answers if answer.scores.error is not None]:
            logger.warning("evaluation: %d tasks dropped, the first: %s", len(dropped), dropped[0])
        metrics = _metrics(answers, best=self.held_out.samples_per_task > 1)
        return Evaluation(metrics.get("reward"), metrics, _in_words(answers))

    async def _task(self, task: Task) -> "_Answers":
        held_out = self.held_out
        try:
            prompt = await self._prompts.encode(task)
        except MediaError as error:
            return _Answers([], frozenset(), GroupScores(error=error))
        stream = ("eval", held_out.name) if held_out.name else ("eval",)
        requests = [
            GenerateRequest(
                key=f"{held_out.tag}/{task.index}/{sample}",
                prompt_ids=prompt.token_ids,
                sampling=held_out.sampling,
                seed=derive_seed(self._seed, *stream, task.index, sample),
                request_class=RequestClass.EVAL,
                media=tuple(prompt.media),
            )
            for sample in range(held_out.samples_per_task)
        ]
        generations = await asyncio.gather(*(self._engine.generate(request) for request in requests))
        samples = [Sample(task, self._prompts.decode(g.token_ids), g.token_ids, g.stop_reason) for g in generations]
        versions = frozenset(version for g in generations for _, version in g.segments)
        return _Answers(samples, versions, await self._scorer.score(samples))


@dataclass(frozen=True)
class _Answers:
    """Answers to one task, the weight versions that gave them, and their scores."""

    samples: Sequence[Sample]
    versions: frozenset[int]
    scores: GroupScores

    @property
    def values(self) -> list[float]:
        """Rewards of those that were scored."""
        return [score.value for score in self.scores.scores if score.value is not None]


def _metrics(answers: Sequence[_Answers], best: bool) -> dict[str, float]:
    lengths = [len(sample.token_ids) for answer in answers for sample in answer.samples] or [0]
    values = [value for answer in answers for value in answer.values]
    metrics = {"response_tokens": float(np.mean(lengths))}
    if values:
        metrics["reward"] = float(np.mean(values))
        if best:
            metrics["reward_best"] = float(np.mean([max(answer.values) for answer in answers if answer.values]))
    if abstained := sum(len(answer.scores.scores) for answer in answers) - len(values):
        metrics["abstained"] = float(abstained)
    if dropped := sum(answer.scores.error is not None for answer in answers):
        metrics["dropped"] = float(dropped)
    if versions := frozenset[int]().union(*(answer.versions for answer in answers)):
        metrics["version"] = float(min(versions))
        if len(versions) > 1:
            metrics["version_newest"] = float(max(versions))
    return metrics


def _in_words(answers: Sequence[_Answers]) -> str:
    answered = [answer for answer in answers if answer.samples]
    if not answered:
        return "no task could be asked"
    first, scores = answered[0].samples[0], answered[0].scores.scores
    return f"{first.task.prompt!r} -> {first.text!r}, reward {scores[0].value if scores else None}"


async def _all(tasks: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Results in order, or the first error, after all have ended: training must not find the engine still at work."""
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]

"""Evaluation looks and does not touch: a run with it trains exactly as one without."""

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from relax_core.api.context import Context, ModelSource
from relax_core.api.engine import GenerateRequest, Generation, RequestClass, SamplingParameters
from relax_core.api.errors import DeadlineExceeded, RewardError
from relax_core.api.reward import Reward
from relax_core.api.rows import Sample, Score, Task
from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.config import RewardConfig
from relax_core.config.load import load_run
from relax_core.engines.torch.config import TorchEngineConfig
from relax_core.engines.torch.engine import TorchEngine
from relax_core.models.prompts import PromptCodec
from relax_core.roles.evaluator import Evaluator, HeldOut
from relax_core.roles.scoring import NamedReward, Scorer
from relax_core.runtimes.local import run_local
from tests.roles.conftest import Numbers

EVALUATION = {
    "every": 1,
    "samples_per_task": 2,
    "dataset": {"name": "generated", "task": "reverse", "digits": 3, "split": "heldout", "heldout": 7},
    "sampling": {"max_new_tokens": 6, "temperature": 0.5, "top_p": 0.9},
}


def trained(folder: Path, model: Path, name: str, **sections: Any) -> list[dict[str, Any]]:
    """Lines of all streams of a short run."""
    base: dict[str, Any] = {
        "updates": 3,
        "name": name,
        "runs_dir": str(folder / "runs"),
        "model": {"path": str(model)},
        "dataset": {"name": "generated", "task": "sort_digits", "digits": 2, "split": "train", "heldout": 10},
        "reward": {"name": "format", "pattern": "(?s)[ -~].*"},
        "batch": {"tasks": 4, "samples_per_task": 4},
        "sampling": {"max_new_tokens": 3},
        "trainer": {"learning_rate": 1e-3},
        "sinks": ["jsonl"],
    }
    config = load_run(None, [], {**base, **sections})
    directory = RunDirectory.create(config.run.runs_dir, name, config.resolved(), 0)
    run_local(config, directory)
    files = [directory.path / "metrics.jsonl", directory.path / "samples.jsonl", directory.path / "ledger.jsonl"]
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def training(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All that concerns training, apart from times."""
    kept = [line for line in lines if line.get("stream") != "eval"]
    return [
        {key: value for key, value in line.items() if not key.startswith(("perf/", "sync/", "time"))} for line in kept
    ]


def test_a_run_with_evaluation_trains_exactly_as_one_without(tmp_path: Path, tiny_model_path: Path) -> None:
    with_it = trained(tmp_path, tiny_model_path, "with", eval=EVALUATION)
    without = trained(tmp_path, tiny_model_path, "without")
    evaluations = [line for line in with_it if line.get("stream") == "eval" and "eval/reward" in line]
    assert [line["step"] for line in evaluations] == [0, 1, 2, 3]
    assert training(with_it) == training(without)
    assert any(line.get("train/loss") for line in without)


class Asked(TorchEngine):
    """Notes what it is asked."""

    def __init__(self, config: TorchEngineConfig, context: Context) -> None:
        super().__init__(config, context)
        self.requests: list[GenerateRequest] = []

    async def generate(self, request: GenerateRequest) -> Generation:
        self.requests.append(request)
        return await super().generate(request)


class Slow(Reward):
    """Fails for task 0 at once; the others take until they are let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.ended = 0

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        if samples[0].task.index == 0:
            raise RewardError("reward slow, task 0: raised")
        await self.go.wait()
        self.ended += 1
        return [Score(1.0) for _ in samples]


async def evaluator(
    model: Path, reward: Reward, timeout: float = 60.0, on_error: Literal["fail", "drop"] = "fail"
) -> tuple[Evaluator, TorchEngine]:
    source = ModelSource(model)
    engine = TorchEngine(TorchEngineConfig(), Context("test", 0, model, source))
    await engine.start()
    scorer = Scorer([NamedReward("slow", reward, RewardConfig(on_error=on_error))])
    held_out = HeldOut("", [Numbers(3)[index] for index in range(3)], SamplingParameters(max_new_tokens=2), 2)
    return Evaluator(held_out, engine, PromptCodec(source), scorer, 0, timeout), engine


async def test_a_failing_evaluation_ends_when_all_its_tasks_have_ended(tiny_model_path: Path) -> None:
    reward = Slow()
    evaluation, engine = await evaluator(tiny_model_path, reward)
    running = asyncio.create_task(evaluation.evaluate())
    done, _ = await asyncio.wait([running], timeout=0.3)
    assert not done, "two tasks are still being scored"
    reward.go.set()
    with pytest.raises(RewardError, match="task 0"):
        await running
    assert reward.ended == 2
    await engine.close()


async def test_an_evaluation_that_takes_too_long_is_given_up_and_frees_the_engine(tiny_model_path: Path) -> None:
    evaluation, engine = await evaluator(tiny_model_path, Slow(), timeout=0.05)
    await engine.pause()
    with pytest.raises(DeadlineExceeded, match=r"timeouts\.generation: the evaluation took more than 0\.05 s"):
        await evaluation.evaluate()
    await engine.resume()
    assert (await engine.health()).waiting == 0
    await engine.close()


async def test_tasks_whose_reward_fails_are_left_out_where_the_configuration_says_drop(tiny_model_path: Path) -> None:
    reward = Slow()
    reward.go.set()
    evaluation, engine = await evaluator(tiny_model_path, reward, on_error="drop")
    result = await evaluation.evaluate()
    assert (result.score, result.metrics["dropped"]) == (1.0, 1.0)
    assert result.example.endswith("reward None")
    await engine.close()


async def test_random_states_of_the_process_stay_as_they_are(tiny_model_path: Path) -> None:
    reward = Slow()
    reward.go.set()
    evaluation, engine = await evaluator(tiny_model_path, reward, on_error="drop")
    before = random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()
    await evaluation.evaluate()
    assert (random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()) == before
    await engine.close()


async def test_requests_are_those_of_an_evaluation_and_differ_between_sets(tiny_model_path: Path) -> None:
    source = ModelSource(tiny_model_path)
    engine = Asked(TorchEngineConfig(), Context("test", 0, tiny_model_path, source))
    await engine.start()
    scorer = Scorer([NamedReward("half", Abstaining(), RewardConfig())])
    for name in ("", "easy", "hard"):
        held_out = HeldOut(name, [Task(3, "3="), Task(5, "5=")], SamplingParameters(2, temperature=0.5), 2)
        await Evaluator(held_out, engine, PromptCodec(source), scorer, 0, 60.0).evaluate()
    await engine.close()
    assert {request.request_class for request in engine.requests} == {RequestClass.EVAL}
    assert {request.sampling for request in engine.requests} == {SamplingParameters(2, temperature=0.5)}
    assert len({request.key for request in engine.requests}) == len({request.seed for request in engine.requests}) == 12
    assert [request.key for request in engine.requests[::4]] == ["eval/3/0", "eval/easy/3/0", "eval/hard/3/0"]


class Abstaining(Reward):
    """Scores the first sample of each task only."""

    def __init__(self) -> None: ...

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        return [Score(0.5), *[Score(None) for _ in samples[1:]]]


async def test_abstentions_leave_the_mean_and_are_counted_and_only_the_first_tasks_are_asked(
    tiny_model_path: Path,
) -> None:
    evaluation, engine = await evaluator(tiny_model_path, Abstaining())
    result = await evaluation.evaluate()
    assert (result.score, result.metrics["reward"], result.metrics["abstained"]) == (0.5, 0.5, 3.0)
    again = await evaluation.evaluate()
    assert again == result, "the same weights are measured the same"
    await engine.close()

"""Requests enter and leave between steps, and no one notices the others."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from relax_core.api.context import Context, ModelSource
from relax_core.api.engine import Engine, GenerateRequest, Generation, RequestClass
from relax_core.api.errors import RelaxError
from relax_core.engines.torch import batch
from relax_core.engines.torch.config import TorchEngineConfig
from relax_core.engines.torch.engine import TorchEngine
from relax_core.engines.torch.sampling import draw
from relax_core.models.initialise import initialise_model
from relax_core.testing.generations import generate_all, request
from relax_core.testing.models import tiny_model
from relax_core.testing.publications import perturbed, publication_of


async def start(path: Path, counts: list[str] | None = None, **config: Any) -> TorchEngine:
    def count(name: str, amount: int = 1) -> None:
        if counts is not None:
            counts.append(name)

    engine = TorchEngine(TorchEngineConfig(**config), Context("test", 0, path, ModelSource(path), count=count))
    await engine.start()
    return engine


@pytest.fixture(scope="module")
def sharp_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose greedy answers are no mere repetition; its output layer is not its embedding."""
    return tiny_model(tmp_path_factory.mktemp("sharp"), initializer_range=0.1, tie_word_embeddings=False)


@pytest.fixture
async def engine(sharp_model_path: Path) -> AsyncIterator[TorchEngine]:
    engine = await start(sharp_model_path)
    yield engine
    await engine.close()


def ragged(count: int, longest: int, **sampling: Any) -> list[GenerateRequest]:
    chance = random.Random(0)
    return [
        request(
            str(index),
            [chance.randrange(256) for _ in range(chance.randint(1, longest))],
            seed=index,
            max_new_tokens=chance.choice([1, 5, 20, 60]),
            **sampling,
        )
        for index in range(count)
    ]


async def one_by_one(engine: Engine, requests: Sequence[GenerateRequest]) -> list[Generation]:
    return [await engine.generate(each) for each in requests]


async def now_and_then(engine: Engine, requests: Sequence[GenerateRequest]) -> list[Generation]:
    """Requests that arrive while others are decoded."""
    chance, tasks = random.Random(1), []
    for each in requests:
        tasks.append(asyncio.create_task(engine.generate(each)))
        await asyncio.sleep(chance.choice([0.0, 0.0, 0.004]))
    async with asyncio.timeout(60):
        return await asyncio.gather(*tasks)


def token_ids(generations: Sequence[Generation]) -> list[tuple[int, ...]]:
    return [each.token_ids for each in generations]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_ragged_requests_get_the_ids_they_get_one_by_one(sharp_model_path: Path, temperature: float) -> None:
    requests = ragged(64, 200, temperature=temperature)
    engine = await start(sharp_model_path, max_batch_rows=16)
    alone = await one_by_one(engine, requests)
    assert token_ids(await now_and_then(engine, requests)) == token_ids(alone)
    assert engine.generated_tokens == 2 * sum(len(each.token_ids) for each in alone)
    await engine.close()
    if temperature == 0:
        network = perturbed(sharp_model_path, 0)
        for asked, generation in zip(requests[:8], alone, strict=False):
            prompt = torch.tensor([asked.prompt_ids])
            theirs = network.generate(prompt, max_new_tokens=asked.sampling.max_new_tokens, do_sample=False)
            assert generation.token_ids == tuple(theirs[0, prompt.shape[1] :].tolist())


async def test_layers_that_keep_a_window_are_decoded_batch_by_batch(tmp_path: Path) -> None:
    settings = {"model_type": "gemma2", "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4,
                "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6, "initializer_range": 0.3}  # fmt: skip
    initialise_model(tmp_path, settings, "bytes", 0)
    engine = await start(tmp_path, max_batch_rows=4, context_length=128)
    requests = ragged(12, 20)
    assert token_ids(await now_and_then(engine, requests)) == token_ids(await one_by_one(engine, requests))
    await engine.close()


async def test_a_short_request_overtakes_a_long_one(engine: TorchEngine) -> None:
    ended: list[str] = []
    long = asyncio.create_task(engine.generate(request("long", temperature=0.0, max_new_tokens=500)))
    long.add_done_callback(lambda _: ended.append("long"))
    while not engine.generated_tokens:
        await asyncio.sleep(0)
    await engine.generate(request("short", max_new_tokens=2))
    ended.append("short")
    assert len((await long).token_ids) > 100
    assert ended == ["short", "long"]


async def test_evaluation_runs_beside_training_with_its_own_sampling(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [
        request("train", seed=3, temperature=1.0, max_new_tokens=20),
        replace(request("eval", temperature=0.0, max_new_tokens=20), request_class=RequestClass.EVAL),
        replace(request("top", temperature=0.7, top_k=3, max_new_tokens=20), request_class=RequestClass.EVAL),
    ]
    alone = await one_by_one(engine, requests)
    together: set[tuple[float, ...]] = set()

    def recorded(logits: Any, sampling: Any, uniforms: Any) -> Any:
        together.add(tuple(sorted(each.temperature for each in sampling)))
        return draw(logits, sampling, uniforms)

    monkeypatch.setattr(batch, "draw", recorded)
    assert token_ids(await generate_all(engine, requests)) == token_ids(alone)
    assert (0.0, 0.7, 1.0) in together


async def test_the_higher_priority_goes_first_when_there_is_no_room(sharp_model_path: Path) -> None:
    engine = await start(sharp_model_path, max_batch_rows=1)
    ended: list[str] = []
    await engine.pause()
    for key, priority in (("low", -1), ("first", 0), ("second", 0), ("high", 1)):
        task = asyncio.create_task(engine.generate(request(key, priority=priority)))
        task.add_done_callback(lambda done: ended.append(done.result().key))
        await asyncio.sleep(0)
    await engine.resume()
    async with asyncio.timeout(60):
        while len(ended) < 4:
            await asyncio.sleep(0.001)
    assert ended == ["high", "first", "second", "low"]
    await engine.close()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("cut", [1, 6, 29])
async def test_an_aborted_and_continued_request_gets_the_ids_of_an_undisturbed_one(
    engine: TorchEngine, temperature: float, cut: int
) -> None:
    whole = request("whole", [1, 2, 3], seed=6, temperature=temperature, max_new_tokens=30)
    expected = (await engine.generate(whole)).token_ids
    rest = replace(
        whole,
        prompt_ids=whole.prompt_ids + expected[:cut],
        sampling=replace(whole.sampling, max_new_tokens=30 - cut),
        generated=cut,
    )
    assert expected[:cut] + (await engine.generate(rest)).token_ids == expected


async def test_a_stop_string_may_begin_in_what_is_continued(engine: TorchEngine) -> None:
    asked = replace(request("cut", [72, 1, 50], max_new_tokens=4, temperature=0.0), generated=1)
    (following, *_) = (await engine.generate(asked)).token_ids
    assert following < 128, "the test needs a token that is a character"
    tokenizer = engine._loaded().tokenizer
    stopping = replace(asked, sampling=replace(asked.sampling, stop=(tokenizer.decode([50, following]),)))
    assert (await engine.generate(stopping)).token_ids == (following,)
    without = replace(stopping, generated=0)
    assert len((await engine.generate(without)).token_ids) == 4, "a prompt is not searched for stop strings"


async def test_an_answer_that_the_context_ends_is_counted(sharp_model_path: Path) -> None:
    counts: list[str] = []
    engine = await start(sharp_model_path, counts, context_length=16)
    await generate_all(
        engine, [request("cut", [5] * 10, max_new_tokens=7), request("fits", [5] * 10, max_new_tokens=6)]
    )
    assert counts == ["engine/context_limit"]
    await engine.close()


async def test_a_row_that_is_not_finite_fails_alone(sharp_model_path: Path) -> None:
    engine = await start(sharp_model_path, max_batch_rows=4)
    network = perturbed(sharp_model_path, 0)
    answered = zip(candidates := ragged(40, 30), await one_by_one(engine, candidates), strict=True)
    # those that never meet the token that will be poisoned
    pairs = [(asked, answer) for asked, answer in answered if 65 not in asked.prompt_ids + answer.token_ids]
    sound, expected = [asked for asked, _ in pairs], [answer for _, answer in pairs]
    assert len(sound) > 12
    with torch.no_grad():
        network.model.embed_tokens.weight[65] = torch.nan
    publication = publication_of(network, 1)
    await engine.update(publication.manifest, publication.buckets)
    poisoned = [request(f"poisoned/{index}", [7] * index + [65]) for index in range(12)]
    tasks = [asyncio.create_task(engine.generate(each)) for pair in zip(sound, poisoned, strict=False) for each in pair]
    tasks += [asyncio.create_task(engine.generate(each)) for each in sound[12:]]
    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    failed = [each for each in outcomes if isinstance(each, RelaxError)]
    assert len(failed) == 12
    assert all("the logits of token 0 are not finite" in str(each) for each in failed)
    assert token_ids([each for each in outcomes if isinstance(each, Generation)]) == token_ids(expected)
    await engine.close()

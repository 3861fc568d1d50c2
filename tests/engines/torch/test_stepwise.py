"""With ``deterministic``, no bit of an answer depends on what else is decoded, or when."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from relax_core.api.context import Context, ModelSource
from relax_core.api.engine import GenerateRequest, Generation
from relax_core.api.errors import ConfigError
from relax_core.engines.torch.config import TorchEngineConfig
from relax_core.engines.torch.engine import TorchEngine
from relax_core.models.initialise import initialise_model
from relax_core.testing.engine import EngineContract, EngineFactory
from relax_core.testing.generations import generate_all, request
from relax_core.testing.models import tiny_model


async def start(path: Path, **config: Any) -> TorchEngine:
    source = ModelSource(path, attention=config.pop("attention", "sdpa"), dtype=config.pop("dtype", "float32"))
    engine = TorchEngine(TorchEngineConfig(deterministic=True, **config), Context("test", 0, path, source))
    await engine.start()
    return engine


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
class TestDeterministicEngine(EngineContract):
    small_batches: ClassVar[Mapping[str, Any]] = {"max_batch_rows": 16}

    @pytest.fixture
    def engine_factory(self) -> EngineFactory:
        return start


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sizes that fill no vector register: 3 heads of 20, 40 and 267 are no multiples of sixteen."""
    odd = {
        "hidden_size": 40,
        "intermediate_size": 52,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 20,
    }
    return tiny_model(tmp_path_factory.mktemp("odd"), initializer_range=0.2, tie_word_embeddings=False, **odd)


@pytest.fixture(params=["sdpa", "eager", "bfloat16"])
async def engine(request: pytest.FixtureRequest, model_path: Path) -> AsyncIterator[TorchEngine]:
    kinds = {"eager": {"attention": "eager"}, "bfloat16": {"dtype": "bfloat16"}}
    engine = await start(model_path, **kinds.get(request.param, {}))
    yield engine
    await engine.close()


def some_requests(chance: random.Random, count: int, longest: int = 40) -> list[GenerateRequest]:
    """Groups and single requests with prompts and answers of all lengths."""
    shared = [tuple(chance.randrange(256) for _ in range(chance.randint(1, longest))) for _ in range(count // 3)]
    restrictions: list[dict[str, Any]] = [
        {},
        {},
        {"temperature": 0.0},
        {"temperature": 0.7},
        {"top_k": 7},
        {"top_p": 0.8},
    ]
    return [
        request(
            str(n),
            chance.choice(shared),
            seed=n,
            max_new_tokens=chance.choice([1, 5, 20]),
            **chance.choice(restrictions),
        )
        for n in range(count)
    ]


async def one_by_one(engine: TorchEngine, requests: Sequence[GenerateRequest]) -> dict[str, Generation]:
    return {each.key: await engine.generate(each) for each in requests}


async def anyhow(
    engine: TorchEngine, requests: Sequence[GenerateRequest], chance: random.Random
) -> dict[str, Generation]:
    """In any order, now and then, with pauses in the middle of answers."""
    tasks = []
    for each in chance.sample(list(requests), len(requests)):
        tasks.append(asyncio.create_task(engine.generate(each)))
        await asyncio.sleep(chance.choice([0.0, 0.0, 0.01]))
        if chance.random() < 0.1:
            await engine.pause()
            await engine.resume()
    async with asyncio.timeout(120):
        return {each.key: each for each in await asyncio.gather(*tasks)}


def assert_same(left: Mapping[str, Generation], right: Mapping[str, Generation]) -> None:
    for key, expected in left.items():
        assert right[key].token_ids == expected.token_ids
        assert right[key].logprobs.tobytes() == expected.logprobs.tobytes()
        assert [ids.tolist() for ids in right[key].support or ()] == [ids.tolist() for ids in expected.support or ()]


async def test_bits_do_not_depend_on_the_batch(engine: TorchEngine) -> None:
    chance = random.Random(0)
    requests = some_requests(chance, 24)
    alone = await one_by_one(engine, requests)
    assert any(len(set(each.token_ids)) > 5 for each in alone.values())
    assert_same(alone, await anyhow(engine, requests, chance))
    some = chance.sample(requests, 9)
    assert_same({each.key: alone[each.key] for each in some}, await anyhow(engine, some, chance))


async def test_bits_do_not_depend_on_the_size_of_batches(model_path: Path) -> None:
    requests = some_requests(random.Random(5), 24)
    answers = []
    for rows in (1, 7, 512):
        engine = await start(model_path, max_batch_rows=rows)
        answers.append({each.key: each for each in await generate_all(engine, requests)})
        await engine.close()
    assert_same(answers[0], answers[1])
    assert_same(answers[0], answers[2])


async def test_bits_do_not_depend_on_where_an_answer_was_cut(model_path: Path) -> None:
    engine = await start(model_path)
    asked = [request(f"whole/{seed}", list(range(40, 77)), seed=seed, max_new_tokens=40) for seed in range(50)]
    whole, expected = next(
        pair for pair in zip(asked, await generate_all(engine, asked), strict=True) if len(pair[1].token_ids) == 40
    )
    for cut in (1, 15, 16, 31):
        asked = replace(
            whole,
            prompt_ids=(*whole.prompt_ids, *expected.token_ids[:cut]),
            sampling=replace(whole.sampling, max_new_tokens=40 - cut),
            generated=cut,
        )
        (rest, *_) = await generate_all(engine, [asked, *some_requests(random.Random(cut), 9)])
        assert rest.token_ids == expected.token_ids[cut:]
        assert rest.logprobs.tobytes() == expected.logprobs[cut:].tobytes()
    await engine.close()


async def test_without_it_bits_do_depend_on_the_batch(model_path: Path) -> None:
    engine = TorchEngine(TorchEngineConfig(), Context("test", 0, model_path, ModelSource(model_path)))
    await engine.start()
    requests = some_requests(random.Random(0), 24)
    alone = await one_by_one(engine, requests)
    together = await generate_all(engine, requests)
    assert any(alone[each.key].logprobs.tobytes() != each.logprobs.tobytes() for each in together)
    await engine.close()


async def test_what_is_not_exact_is_refused(model_path: Path, tmp_path: Path) -> None:
    torch.set_num_threads(2)
    try:
        with pytest.raises(ConfigError, match=r"engine\.deterministic: .* 2 threads.*`threads: 1`"):
            await start(model_path)
    finally:
        torch.set_num_threads(1)
    windows = {"model_type": "gemma2", "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4,
               "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6}  # fmt: skip
    initialise_model(tmp_path, windows, "bytes", 0)
    with pytest.raises(ConfigError, match=r"engine\.deterministic: .* window"):
        await start(tmp_path)

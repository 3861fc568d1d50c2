"""The embedded engine keeps the contract; and what is its own."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from relax_core.api.context import Context, ModelSource
from relax_core.api.errors import ConfigError, RelaxError, WeightSyncError
from relax_core.api.rows import StopReason
from relax_core.engines.torch import batch
from relax_core.engines.torch.config import TorchEngineConfig
from relax_core.engines.torch.decoder import Decoder
from relax_core.engines.torch.engine import TorchEngine
from relax_core.engines.torch.weights import copy_weights
from relax_core.testing.engine import EngineContract, EngineFactory
from relax_core.testing.generations import assert_whole, generate_all, group, request
from relax_core.testing.publications import perturbed, publication_of


async def start(path: Path, **config: Any) -> TorchEngine:
    engine = TorchEngine(TorchEngineConfig(**config), Context("test", 0, path, ModelSource(path)))
    await engine.start()
    return engine


@pytest.fixture
async def engine(tiny_model_path: Path) -> AsyncIterator[TorchEngine]:
    engine = await start(tiny_model_path)
    yield engine
    await engine.close()


class TestTorchEngine(EngineContract):
    small_batches: ClassVar[Mapping[str, Any]] = {"max_batch_rows": 16}

    @pytest.fixture
    def engine_factory(self) -> EngineFactory:
        return start


async def test_a_prompt_that_a_group_shares_is_computed_once(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefills: list[list[tuple[int, ...]]] = []

    class Recorded(Decoder):
        def add(self, sequences: Any, media: Any = None) -> list[int]:
            prefills.append(list(sequences))
            return super().add(sequences, media)

    monkeypatch.setattr(batch, "Decoder", Recorded)
    await generate_all(engine, [*group("a", [5, 6], max_new_tokens=2), *group("b", [7], max_new_tokens=2)])
    assert prefills == [[(5, 6), (7,)]]


async def test_an_engine_without_a_model_or_before_its_start_refuses(tiny_model_path: Path) -> None:
    engine = TorchEngine(TorchEngineConfig(), Context("test", 0, tiny_model_path))
    with pytest.raises(RelaxError, match="not started"):
        await engine.generate(request("early"))
    assert not (await engine.health()).healthy
    with pytest.raises(ConfigError, match="needs a model"):
        await engine.start()
    await engine.close()


async def test_a_key_in_flight_is_refused(engine: TorchEngine) -> None:
    await engine.pause()
    first = asyncio.create_task(engine.generate(request("twice")))
    await asyncio.sleep(0)
    with pytest.raises(RelaxError, match="'twice'"):
        await engine.generate(request("twice"))
    await engine.resume()
    assert (await first).token_ids
    assert (await engine.generate(request("twice"))).token_ids


async def test_weights_that_are_not_finite_fail_the_request_by_name(engine: TorchEngine, tiny_model_path: Path) -> None:
    network = perturbed(tiny_model_path, 0)
    with torch.no_grad():
        network.model.embed_tokens.weight[65] = torch.nan
    publication = publication_of(network, 1)
    await engine.update(publication.manifest, publication.buckets)
    with pytest.raises(RelaxError, match="'poisoned': the logits of token 0 are not finite"):
        await engine.generate(request("poisoned", [65]))


async def test_a_caller_that_stops_waiting_leaves_nothing_behind(engine: TorchEngine) -> None:
    expected = (await generate_all(engine, [request("other")]))[0].token_ids
    tasks = [asyncio.create_task(engine.generate(each)) for each in group("gone", max_new_tokens=400)]
    other = asyncio.create_task(engine.generate(request("other")))
    await asyncio.sleep(0.02)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (await other).token_ids == expected
    health = await engine.health()
    assert (health.running, health.waiting) == (0, 0)


async def test_a_running_request_is_aborted_with_its_tokens(engine: TorchEngine) -> None:
    asked = replace(request("running", max_new_tokens=500, top_k=40), seed=2)
    whole, aborted = (await generate_all(engine, [asked]))[0], None
    for attempt in range(50):
        task = asyncio.create_task(engine.generate(asked))
        await asyncio.sleep(0.002 * attempt)
        await engine.abort()
        aborted = await task
        assert_whole(asked, aborted)
        assert aborted.token_ids == whole.token_ids[: len(aborted.token_ids)]
        if aborted.token_ids:
            break
    assert aborted is not None
    assert aborted.stop_reason == StopReason.ABORT
    assert 0 < len(aborted.token_ids) < len(whole.token_ids)


async def test_an_abort_amid_a_pause_returns_at_once(engine: TorchEngine) -> None:
    asked = request("stuck", top_p=0.9)
    await engine.pause()
    task = asyncio.create_task(engine.generate(asked))
    await asyncio.sleep(0)
    await engine.abort(["stuck"])
    async with asyncio.timeout(60):
        aborted = await task
    assert aborted.stop_reason == StopReason.ABORT
    assert_whole(asked, aborted)


async def test_a_pause_keeps_tokens_and_changes_none(engine: TorchEngine) -> None:
    asked = group("paused", max_new_tokens=120)
    expected = await generate_all(engine, asked)
    tasks = [asyncio.create_task(engine.generate(each)) for each in asked]
    for _ in range(10):
        await asyncio.sleep(0.003)
        await engine.pause()
        await engine.resume()
    for before, after in zip(expected, await asyncio.gather(*tasks), strict=True):
        assert before.token_ids == after.token_ids
        np.testing.assert_allclose(before.logprobs, after.logprobs, atol=1e-5)
        assert after.segments == ((0, 0),)


async def test_an_engine_that_fails_says_so_and_goes_on(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*arguments: Any) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "extend", out_of_memory)
        with pytest.raises(RelaxError, match="'fails': decoding failed: MemoryError: no room"):
            await engine.generate(request("fails"))
    assert (await engine.generate(request("works"))).token_ids


async def test_released_memory_is_refused_until_it_is_back(engine: TorchEngine, tiny_model_path: Path) -> None:
    publication = publication_of(perturbed(tiny_model_path, 1), 1)
    with pytest.raises(RelaxError, match="optimizer"):
        await engine.release(frozenset({"optimizer"}))
    await engine.release(frozenset({"cache"}))
    with pytest.raises(RelaxError, match="released its cache"):
        await engine.generate(request("early"))
    await engine.restore()
    assert (await engine.generate(request("cache"))).token_ids, "a cache is made anew, weights were kept"
    await engine.release()
    with pytest.raises(WeightSyncError, match="restore comes first"):
        await engine.update(publication.manifest, publication.buckets)


async def test_requests_wait_for_released_weights(engine: TorchEngine, tiny_model_path: Path) -> None:
    await engine.pause()
    task = asyncio.create_task(engine.generate(request("patient")))
    await asyncio.sleep(0)
    await engine.release()
    await engine.resume()
    await engine.restore()
    publication = publication_of(perturbed(tiny_model_path, 1), 1)
    await engine.update(publication.manifest, publication.buckets)
    async with asyncio.timeout(60):
        assert (await task).segments == ((0, 1),)


async def test_a_request_that_comes_amid_a_swap_waits_for_it(
    engine: TorchEngine, tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow_copy(own: Mapping[str, torch.Tensor], arrived: Mapping[str, torch.Tensor]) -> None:
        begun.set()
        assert go_on.wait(60)
        copy_weights(own, arrived)

    monkeypatch.setattr("relax_core.engines.torch.engine.copy_weights", slow_copy)
    publication = publication_of(perturbed(tiny_model_path, 1), 1)
    update = asyncio.create_task(engine.update(publication.manifest, publication.buckets))
    assert await asyncio.to_thread(begun.wait, 60)
    generation = asyncio.create_task(engine.generate(request("amid")))
    await asyncio.sleep(0)
    go_on.set()
    async with asyncio.timeout(60):
        await update
        assert (await generation).segments == ((0, 1),)


async def test_close_can_be_repeated(tiny_model_path: Path) -> None:
    engine = await start(tiny_model_path)
    await engine.close()
    await engine.close()
    assert (await engine.health()).detail == "the torch engine is closed"

"""One engine after the other in one process: each ends without leftovers, however it ends."""

import asyncio
import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from relax_vllm.engine import VLLMEngine

from relax_core.api.errors import RelaxError
from relax_core.testing.generations import group, request
from relax_core.testing.models import tiny_model

pytest.importorskip("vllm")
pytestmark = pytest.mark.slow


async def test_close_leaves_nothing_and_the_next_engine_serves_by_priority(start: Any, vllm_model_path: Path) -> None:
    async def run_once() -> tuple[list[str], weakref.ref[Any]]:
        engine: VLLMEngine = await start(vllm_model_path, max_num_seqs=1)
        ended: list[str] = []

        async def ask(key: str, priority: int) -> None:
            await engine.generate(request(key, priority=priority, temperature=0.0))
            ended.append(key)

        await engine.pause()
        tasks = [asyncio.create_task(ask(key, priority)) for key, priority in (("low", 0), ("high", 2), ("middle", 1))]
        await asyncio.sleep(0)
        await engine.resume()
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks)
        assert engine._vllm is not None
        (model,) = engine._vllm._engine.apply_model(weakref.ref)
        await engine.close()
        return ended, model

    # Another package's tests may have left helpers in this process; vLLM must add none.
    children = set(psutil.Process().children(recursive=True))
    await run_once()
    threads = set(threading.enumerate())
    ended, model = await run_once()
    gc.collect()
    assert ended == ["high", "middle", "low"]
    assert model() is None, "the weights are given back"
    assert set(threading.enumerate()) <= threads
    assert set(psutil.Process().children(recursive=True)) <= children
    assert not torch.distributed.is_initialized()


async def test_a_failure_of_vllm_fails_requests_by_name_and_stays(start: Any, tmp_path: Path) -> None:
    engine: VLLMEngine = await start(tiny_model(tmp_path, head_dim=16))  # a size that CPU attention does not know
    async with asyncio.timeout(60):
        results = await asyncio.gather(*map(engine.generate, group("failed", size=3)), return_exceptions=True)
    assert all(isinstance(each, RelaxError) and "vLLM failed: RuntimeError" in str(each) for each in results)
    assert "request 'failed/1'" in str(results[1])
    health = await engine.health()
    assert not health.healthy and "head_dim=16" in health.detail
    with pytest.raises(RelaxError, match="head_dim=16"):
        await engine.generate(request("late"))
    await engine.close()


async def test_settings_that_vllm_refuses_are_told(start: Any, vllm_model_path: Path) -> None:
    with pytest.raises(RelaxError, match=r"does not start with .*KV cache"):
        await start(vllm_model_path, kv_cache_memory_bytes=2**18)


async def test_a_second_engine_beside_the_first_is_refused(start: Any, vllm_model_path: Path) -> None:
    engine: VLLMEngine = await start(vllm_model_path)
    with pytest.raises(RelaxError, match="a process holds one vllm engine"):
        await start(vllm_model_path)
    async with asyncio.timeout(60):
        assert (await engine.generate(request("first"))).token_ids, "the first one goes on"
    await engine.close()

"""A model whose heads have a size that vLLM's CPU attention knows, and engines of it."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from relax_vllm.config import VLLMEngineConfig
from relax_vllm.engine import VLLMEngine

from relax_core.api.context import Context, ModelSource
from relax_core.testing.models import tiny_model

Start = Callable[..., Awaitable[VLLMEngine]]


@pytest.fixture(scope="session")
def vllm_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tied Qwen3 whose distributions are sharp enough that changes of weights show."""
    return tiny_model(tmp_path_factory.mktemp("vllm"), initializer_range=0.3, head_dim=32)


@pytest.fixture(scope="session")
def start() -> Start:
    """``await start(model_path, **config)`` gives a started engine."""

    async def started(path: Path, **config: Any) -> VLLMEngine:
        settings = VLLMEngineConfig(**{"kv_cache_memory_bytes": 2**25, **config})
        engine = VLLMEngine(settings, Context("test", 0, path, ModelSource(path)))
        await engine.start()
        return engine

    return started

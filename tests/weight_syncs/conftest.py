"""Engines for the contract of weight syncs: in this process, or each in a process of its own."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from relax_core.api.context import Context, ModelSource
from relax_core.api.engine import Engine
from relax_core.config.load import load_run
from relax_core.engines.process.engine import ProcessEngine
from relax_core.engines.torch.config import TorchEngineConfig
from relax_core.engines.torch.engine import TorchEngine
from relax_core.testing.weight_sync import EnginesFactory


@pytest.fixture
async def engines_factory() -> AsyncIterator[EnginesFactory]:
    """Engines of this process."""
    started: list[Engine] = []

    async def start(path: Path, count: int) -> Sequence[Engine]:
        context = Context("test", 0, path, ModelSource(path))
        engines = [TorchEngine(TorchEngineConfig(), context) for _ in range(count)]
        started.extend(engines)
        await asyncio.gather(*(engine.start() for engine in engines))
        return engines

    yield start
    for engine in started:
        await engine.close()


@pytest.fixture
async def process_engines() -> AsyncIterator[EnginesFactory]:
    """Engines in processes of their own."""
    started: list[Engine] = []

    async def start(path: Path, count: int) -> Sequence[Engine]:
        settings = {"updates": 1, "model": {"path": str(path)}, "dataset": {"name": "generated"}, "reward": "exact"}
        selected = load_run(None, [], settings).engine
        context = Context("test", 0, path, ModelSource(path))
        engines = [ProcessEngine(selected, context, threads=1) for _ in range(count)]
        started.extend(engines)
        await asyncio.gather(*(engine.start() for engine in engines))
        return engines

    yield start
    for engine in started:
        await engine.close()

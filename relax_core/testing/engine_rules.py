"""What the parts of the engines' contract suite share."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from relax_core.api.engine import Capability, Engine
from relax_core.testing.models import tiny_model

EngineFactory = Callable[..., Awaitable[Engine]]


class EngineRules:
    """What rules for engines share: which engine, which model, what it can do."""

    pytestmark = pytest.mark.asyncio

    capabilities: frozenset[Capability] = frozenset(Capability) - {Capability.MEDIA}
    tolerance: float = 1e-5
    """Largest difference of a log-probability to a plain forward pass, in nats."""

    small_batches: ClassVar[Mapping[str, Any]] = {}
    """Configuration with which few requests run at once, so that others wait."""

    @pytest.fixture
    def engine_factory(self) -> EngineFactory:
        """``await factory(model_path, **config)`` gives a started engine."""
        raise NotImplementedError("override the fixture engine_factory")

    @pytest.fixture(scope="class")
    @classmethod
    def model_path(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A random model whose distributions are sharp enough that changes of weights show."""
        return tiny_model(tmp_path_factory.mktemp("engine"), initializer_range=0.1)

    @contextlib.asynccontextmanager
    async def running(self, factory: EngineFactory, path: Path, **config: Any) -> AsyncIterator[Engine]:
        """A started engine that is closed at the end."""
        engine = await factory(path, **config)
        try:
            yield engine
        finally:
            await engine.close()

    def needs(self, capability: Capability) -> None:
        """Skips the test where the engine lacks a capability."""
        if capability not in self.capabilities:
            pytest.skip(f"no {capability.value}")

    def restricted(self, top_k: int) -> dict[str, int]:
        """Sampling that leaves tokens out, where the engine can say which."""
        return {"top_k": top_k} if Capability.SUPPORT_IDS in self.capabilities else {}

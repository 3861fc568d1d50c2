"""The vLLM engine keeps the contract of all engines. Every test starts vLLM anew."""

from pathlib import Path
from typing import Any

import pytest
from relax_vllm.config import VLLMEngineConfig
from relax_vllm.engine import VLLMEngine

from relax_core.api.context import Context, ModelSource
from relax_core.api.engine import Capability, Engine
from relax_core.testing.engine import EngineContract, EngineFactory
from relax_core.testing.models import tiny_model

pytest.importorskip("vllm")
pytestmark = pytest.mark.slow


async def start(path: Path, **config: Any) -> Engine:
    engine = VLLMEngine(
        VLLMEngineConfig(kv_cache_memory_bytes=2**25, **config), Context("test", 0, path, ModelSource(path))
    )
    await engine.start()
    return engine


class TestVLLMEngine(EngineContract):
    capabilities = frozenset(Capability) - {Capability.SUPPORT_IDS}

    @pytest.fixture
    def engine_factory(self) -> EngineFactory:
        return start

    @pytest.fixture(scope="class")
    @classmethod
    def model_path(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """As in the contract, with heads of a size that CPU attention knows."""
        return tiny_model(tmp_path_factory.mktemp("engine"), initializer_range=0.3, head_dim=32)

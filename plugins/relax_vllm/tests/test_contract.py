"""The vLLM engine keeps the contract of all engines. Every test starts vLLM anew."""

from pathlib import Path

import pytest

from relax_core.api.engine import Capability
from relax_core.testing.engine import EngineContract, EngineFactory

pytest.importorskip("vllm")
pytestmark = pytest.mark.slow


ASKS_FOR_TOP_K = pytest.mark.skip(reason="asks for top_k in training, which needs the capability support_ids")


class TestVLLMEngine(EngineContract):
    capabilities = frozenset(Capability) - {Capability.SUPPORT_IDS}
    test_a_seed_decides = ASKS_FOR_TOP_K(EngineContract.test_a_seed_decides)
    test_nothing_is_lost_in_a_storm = ASKS_FOR_TOP_K(EngineContract.test_nothing_is_lost_in_a_storm)

    @pytest.fixture
    def engine_factory(self, start: EngineFactory) -> EngineFactory:
        return start

    @pytest.fixture(scope="class")
    @classmethod
    def model_path(cls, vllm_model_path: Path) -> Path:
        return vllm_model_path

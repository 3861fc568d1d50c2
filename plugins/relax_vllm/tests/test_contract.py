"""The vLLM engine keeps the contract of all engines. Every test starts vLLM anew."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from relax_core.api.engine import Capability
from relax_core.testing.engine import EngineContract, EngineFactory

pytest.importorskip("vllm")
pytestmark = pytest.mark.slow


class TestVLLMEngine(EngineContract):
    capabilities = frozenset(Capability) - {Capability.DELTAS, Capability.MEDIA, Capability.SUPPORT_IDS}
    # Its own kernels round otherwise: a little more than 1e-5 in rows of 200 tokens. Wrong weights gave 9e-4 at least.
    tolerance = 1e-4
    small_batches: ClassVar[Mapping[str, Any]] = {"max_num_seqs": 16}

    @pytest.fixture
    def engine_factory(self, start: EngineFactory) -> EngineFactory:
        return start

    @pytest.fixture(scope="class")
    @classmethod
    def model_path(cls, vllm_model_path: Path) -> Path:
        return vllm_model_path

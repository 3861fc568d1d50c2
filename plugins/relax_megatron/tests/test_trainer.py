"""The promises of every trainer, kept over several ranks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from relax_core.testing.trainer import Factory, TrainerContract

pytest.importorskip("megatron.core")
pytestmark = [pytest.mark.backend, pytest.mark.slow]

LAYOUTS = {
    "one rank": {},
    "tensor parallel": {"tensor_parallel": 2},
    "pipeline parallel": {"pipeline_parallel": 2},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))
class TestMegatronTrainer(TrainerContract):
    @pytest.fixture
    def factory(self, start_trainer: Callable[..., Any], layout: dict[str, int]) -> Factory:
        return partial(start_trainer, **layout)

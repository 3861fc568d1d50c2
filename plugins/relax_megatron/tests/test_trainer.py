"""The promises of every trainer, kept over several ranks."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from relax_core.api.errors import DeadlineExceeded, TrainingError
from relax_core.testing.trainer import Factory, TrainerContract, example_rows, token_loss

pytest.importorskip("megatron.core")
pytestmark = pytest.mark.slow

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


def test_a_rank_that_dies_within_a_collective_is_told(start_trainer: Callable[..., Any], tiny_model_path: Path) -> None:
    trainer = start_trainer(tiny_model_path, tensor_parallel=2)
    os.kill(trainer.ranks.pids[1], signal.SIGKILL)
    with pytest.raises(TrainingError, match="rank 1 died during accumulate"):
        trainer.accumulate([example_rows()], token_loss)
    with pytest.raises(TrainingError, match="rank 1 died"):
        trainer.apply(1.0)


def test_a_rank_that_hangs_within_a_collective_is_told(
    start_trainer: Callable[..., Any], tiny_model_path: Path
) -> None:
    trainer = start_trainer(tiny_model_path, pipeline_parallel=2, call_timeout=10)
    os.kill(trainer.ranks.pids[0], signal.SIGSTOP)
    with pytest.raises(DeadlineExceeded, match="rank 0"):
        trainer.accumulate([example_rows()], token_loss)


def test_a_loss_that_cannot_reach_the_ranks_is_refused(
    start_trainer: Callable[..., Any], tiny_model_path: Path
) -> None:
    trainer = start_trainer(tiny_model_path)
    with pytest.raises(TrainingError, match="cannot be sent to the ranks"):
        trainer.accumulate([example_rows()], lambda tokens: replace(token_loss(tokens), metrics={}))

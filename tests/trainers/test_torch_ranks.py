"""The embedded trainer on two ranks makes the updates of one, with whole models and with one that is dealt to them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from relax_core.api.context import Context, ModelSource
from relax_core.testing.ranks import RANKS, TwoRanks
from relax_core.testing.trainer import example_rows, one_update, token_loss
from relax_core.testing.trainer_ranks import RankFactory, TrainerRanksContract
from relax_core.trainers.torch.config import TorchTrainerConfig
from relax_core.trainers.torch.trainer import TorchTrainer
from tests.trainers.test_torch_contract import factory_of

pytestmark = pytest.mark.slow


def build(rank: int, size: int, model: Path, dtype: str = "float32", /, **config: Any) -> TorchTrainer:
    context = Context("test", 0, model, ModelSource(model, dtype), rank=rank, world_size=size)
    trainer = TorchTrainer(TorchTrainerConfig(**config), context)
    trainer.start()
    return trainer


class Ranks(TrainerRanksContract):
    @pytest.fixture
    def factory(self, tmp_path: Path) -> Callable[..., TorchTrainer]:
        return factory_of(tmp_path)


class TestDataParallel(Ranks):
    @pytest.fixture
    def rank_factory(self) -> RankFactory:
        return partial(build, parallel="ddp")


class TestFullySharded(Ranks):
    @pytest.fixture
    def rank_factory(self) -> RankFactory:
        return partial(build, parallel="fsdp")


class TestFullyShardedPackedChunkedAndRecomputed(Ranks):
    @pytest.fixture
    def rank_factory(self) -> RankFactory:
        return partial(build, parallel="fsdp", packing=True, logprob_chunk_tokens=3, gradient_checkpointing=True)


def held(rank: int, model: Path, kind: str) -> tuple[int, int]:
    """Numbers that a rank keeps between updates, and parameters of the model."""
    trainer = build(rank, RANKS, model, parallel=kind)
    one_update(trainer, [example_rows()], token_loss)
    kept = sum(
        tensor.numel() for tensor in [*trainer.optimizer.masters.values(), *trainer.optimizer.tensors().values()]
    )
    return kept, sum(parameter.numel() for parameter in trainer.policy.model.parameters())


def test_a_rank_keeps_its_share_of_parameters_and_moments(tiny_model_path: Path) -> None:
    with TwoRanks() as ranks:
        (whole, parameters), _ = ranks.run(held, tiny_model_path, "ddp")
        (first, _), (second, _) = ranks.run(held, tiny_model_path, "fsdp")
    scalars = whole - 3 * parameters
    assert 0 < scalars < 100, "a step count for each tensor"
    assert first + second == whole + scalars
    assert max(first, second) < 0.51 * whole

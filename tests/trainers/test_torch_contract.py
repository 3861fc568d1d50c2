"""The embedded trainer keeps every trainer's promises, padded, packed and sharing prompts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relax_core.api.context import Context, ModelSource
from relax_core.testing.trainer import TrainerContract
from relax_core.trainers.torch.config import TorchTrainerConfig
from relax_core.trainers.torch.trainer import TorchTrainer


def factory_of(directory: Path, **defaults: Any) -> Callable[..., TorchTrainer]:
    def build(model_path: Path, dtype: str = "float32", **config: Any) -> TorchTrainer:
        context = Context("test", 0, directory, ModelSource(model_path, dtype))
        trainer = TorchTrainer(TorchTrainerConfig(**{**defaults, **config}), context)
        trainer.start()
        return trainer

    return build


class TestPadded(TrainerContract):
    @pytest.fixture
    def factory(self, tmp_path: Path) -> Callable[..., TorchTrainer]:
        return factory_of(tmp_path, share_prompts=False)


class TestPackedChunkedAndRecomputed(TrainerContract):
    @pytest.fixture
    def factory(self, tmp_path: Path) -> Callable[..., TorchTrainer]:
        return factory_of(tmp_path, packing=True, logprob_chunk_tokens=3, gradient_checkpointing=True)


class TestSharingPrompts(TrainerContract):
    @pytest.fixture
    def factory(self, tmp_path: Path) -> Callable[..., TorchTrainer]:
        return factory_of(tmp_path, share_prompts=True)


class TestSharingPromptsChunkedAndRecomputed(TrainerContract):
    @pytest.fixture
    def factory(self, tmp_path: Path) -> Callable[..., TorchTrainer]:
        return factory_of(tmp_path, share_prompts=True, logprob_chunk_tokens=3, gradient_checkpointing=True)

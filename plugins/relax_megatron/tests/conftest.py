"""Shared by the tests of this package: a trainer that is closed whatever happens."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relax_core.api.context import Context, ModelSource


@pytest.fixture
def start_trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """``start_trainer(model_path, dtype="float32", **config)`` -> a started Megatron trainer."""
    from relax_megatron.config import MegatronTrainerConfig
    from relax_megatron.trainer import MegatronTrainer

    trainers = []

    def start(model_path: Path, dtype: str = "float32", **config: Any) -> MegatronTrainer:
        context = Context("test", 0, tmp_path_factory.mktemp("run"), ModelSource(model_path, dtype))
        trainer = MegatronTrainer(MegatronTrainerConfig(**config), context)
        trainer.start()
        trainers.append(trainer)
        return trainer

    yield start
    for trainer in trainers:
        trainer.close()

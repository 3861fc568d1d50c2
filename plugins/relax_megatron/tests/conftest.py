"""Shared by the tests of this package: no spinning threads, and a trainer that is closed whatever happens."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relax_core.api.context import Context, ModelSource
from relax_core.testing.models import tiny_model


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "backend: needs the plugin's backend")


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random Qwen3 with the byte tokenizer; read only."""
    return tiny_model(tmp_path_factory.mktemp("model"))


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

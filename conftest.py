"""Shared by all tests: no hub, no spinning threads, no time limits on properties, one tiny model per session."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from relax_core.engines.torch.engine import TorchEngine
    from relax_core.trainers.torch.trainer import TorchTrainer

# A busy machine is slow; only pytest-timeout decides what hangs.
settings.register_profile("relax", deadline=None)
settings.load_profile("relax")


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random Qwen3 with the byte tokenizer; read only."""
    from relax_core.testing.models import tiny_model

    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A small Ray cluster of this test session, started when the first test needs it."""
    from relax_core.runtimes.serve.cluster import cluster

    with cluster(object_store_bytes=128 * 2**20):
        yield


@pytest.fixture(scope="module")
def trainer(tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator["TorchTrainer"]:
    """The embedded trainer with learning rate 0: tests share it and leave it as it was."""
    from relax_core.api.context import Context, ModelSource
    from relax_core.trainers.torch.config import TorchTrainerConfig
    from relax_core.trainers.torch.trainer import TorchTrainer

    context = Context("test", 0, tmp_path_factory.mktemp("run"), ModelSource(tiny_model_path))
    trainer = TorchTrainer(TorchTrainerConfig(learning_rate=0.0), context)
    trainer.start()
    yield trainer
    trainer.close()


@pytest.fixture
async def engine(tiny_model_path: Path, tmp_path: Path) -> AsyncIterator["TorchEngine"]:
    """The embedded engine, started."""
    from relax_core.api.context import Context, ModelSource
    from relax_core.engines.torch.config import TorchEngineConfig
    from relax_core.engines.torch.engine import TorchEngine

    engine = TorchEngine(TorchEngineConfig(), Context("test", 0, tmp_path, ModelSource(tiny_model_path)))
    await engine.start()
    yield engine
    await engine.close()

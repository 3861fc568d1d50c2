"""Shared by all tests: no hub, no spinning threads, one tiny model per session."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random Qwen3 with the byte tokenizer; read only."""
    from relax_core.testing.models import tiny_model

    return tiny_model(tmp_path_factory.mktemp("model"))

"""A valid configuration to spoil."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """What a configuration checks of a model: a folder with config.json."""
    folder = tmp_path / "models" / "qwen"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def document(model_folder: Path) -> dict[str, Any]:
    """Every section that selects a component is written."""
    return {
        "model": {"path": str(model_folder)},
        "updates": 6,
        "algorithm": {"name": "grpo"},
        "trainer": {"name": "torch", "learning_rate": 1e-3},
        "engine": "torch",
        "dataset": {"name": "generated", "digits": 3},
        "reward": {"name": "exact"},
        "sinks": ["console", {"name": "jsonl"}],
        "eval": {"every": 2, "dataset": {"name": "generated", "split": "heldout"}, "reward": "exact"},
        "warmup": {"updates": 3, "algorithm": "sft", "trainer": {"learning_rate": 1e-2}},
    }

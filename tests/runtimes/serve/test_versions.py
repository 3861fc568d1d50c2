"""Versions of processes: the controller's, or one line that names what differs where."""

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from relax_core.api.errors import PluginError
from relax_core.config.load import load_run
from relax_core.runtimes.serve.versions import MISSING, PYTHON, check_versions, installed, versions

CONFIG: dict[str, Any] = {
    "updates": 1,
    "dataset": {"name": "generated", "task": "sort_digits"},
    "reward": "exact",
    "algorithm": "grpo",
}


def test_what_a_run_selects_counts(tiny_model_path: Path) -> None:
    found = versions(load_run(None, [], {**CONFIG, "model": {"path": str(tiny_model_path)}}))
    assert set(found) == {PYTHON, "relax-core", "torch", "transformers", "relax-algos"}
    assert found["torch"] == Version(metadata.version("torch")).base_version
    check_versions(found, "here")


def test_what_differs_is_named_with_both_versions_and_the_place() -> None:
    expected = {**installed(("torch", "transformers", PYTHON)), "torch": "1.0", "relax-nowhere": "2.0"}
    with pytest.raises(PluginError) as refused:
        check_versions(expected, "reward on node-1")
    message = str(refused.value)
    assert "\n" not in message
    assert message.startswith("reward on node-1 has torch ")
    assert "not 1.0" in message
    assert f"relax-nowhere {MISSING}, not 2.0" in message
    assert "transformers" not in message

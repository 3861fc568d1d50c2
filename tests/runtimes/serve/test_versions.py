"""Versions of processes: the controller's, or one line that names what differs where."""

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from relax_core.api.errors import PluginError, RelaxError, TransportError
from relax_core.config.load import load_run
from relax_core.runtimes.serve.actors import start_actor
from relax_core.runtimes.serve.versions import MISSING, PYTHON, check_versions, installed, versions
from relax_core.transports.ray.calls import ActorLost, call

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


class Refuses:
    """An actor that cannot be."""

    def __init__(self, error: type[RelaxError]) -> None:
        raise error("state on node-1 has torch 1.0, not 2.0")

    def version(self) -> int:
        """Is never asked."""
        return 0


@pytest.mark.slow
def test_an_actor_that_refuses_to_be_started_is_not_lost(ray_cluster: None) -> None:
    with pytest.raises(PluginError, match=r"^state on node-1 has torch 1\.0, not 2\.0$"):
        call(start_actor(Refuses, "refuses", "versions", PluginError), "version")
    with pytest.raises(ActorLost, match="creation task"):
        call(start_actor(Refuses, "fails", "versions", TransportError), "version")

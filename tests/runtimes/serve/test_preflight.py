"""What a run is told before anything of it is started, on a real cluster."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relax_core.api.errors import ConfigError, PluginError
from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.config.load import RunConfig
from relax_core.runtimes.serve import preflight as module
from relax_core.runtimes.serve.actors import start_actor
from relax_core.runtimes.serve.assignment import STATE, Assignment
from relax_core.runtimes.serve.device import prepare_device
from relax_core.runtimes.serve.preflight import check_host, preflight
from relax_core.runtimes.serve.versions import versions
from relax_core.transports.ray.calls import call
from tests.runtimes.serve.conftest import DEADLINE, SERVE

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

Configure = Callable[..., tuple[RunConfig, RunDirectory]]
FAKE = "transformers-0.0.1.dist-info"


def test_a_cluster_that_has_everything_is_not_refused(configure: Configure) -> None:
    config, run = configure("enough", **SERVE)
    preflight(config, config.plan(), "cpu", run.path.resolve())


def test_missing_accelerators_are_told_role_by_role(configure: Configure) -> None:
    config, run = configure("accelerators", **SERVE)
    with pytest.raises(ConfigError, match="too few accelerators") as refused:
        preflight(config, config.plan(), "cuda", run.path.resolve())
    assert {"rollout", "actor", "needed"} <= {line.split()[0] for line in str(refused.value).splitlines()}


def test_a_folder_that_nodes_do_not_share_is_refused(configure: Configure, tmp_path: Path) -> None:
    config, _ = configure("elsewhere", **SERVE)
    with pytest.raises(ConfigError, match=r"runs_dir: node .* does not see '.*/nowhere'"):
        preflight(config, config.plan(), "cpu", tmp_path / "nowhere")


def test_a_name_that_goes_on_in_the_cluster_is_refused(configure: Configure) -> None:
    config, run = configure("twice", **SERVE)
    holder = start_actor(SimpleNamespace, STATE, "twice")
    with pytest.raises(ConfigError, match="name: a run 'twice' goes on"):
        preflight(config, config.plan(), "cpu", run.path.resolve())
    del holder


def test_a_node_with_another_version_is_named(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    config, run = configure("node", **SERVE)
    monkeypatch.setattr(module, "versions", lambda config: versions(config) | {"torch": "0.0.1"})
    with pytest.raises(PluginError, match=r"^node \S+ has torch \S+, not 0.0.1: "):
        preflight(config, config.plan(), "cpu", run.path.resolve())


def test_a_process_with_another_version_refuses_to_work(configure: Configure, tmp_path: Path) -> None:
    (tmp_path / FAKE).mkdir()
    (tmp_path / FAKE / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 0.0.1\n")
    config, run = configure("process", **SERVE)
    expected = versions(config)
    assignment = Assignment(
        config, config.plan(), "process", run.path.resolve(), "cpu", tmp_path, "", 1, expected, Path.cwd()
    )

    class Rank:
        def start(self) -> None:
            prepare_device(assignment)

    changed: Any = {"env_vars": {"PYTHONPATH": str(tmp_path)}}
    rank = start_actor(Rank, "actor-1", "process", runtime_env=changed)
    with pytest.raises(PluginError, match=r"^actor-1 on \S+ has transformers 0.0.1, not \d\S+: "):
        call(rank, "start", timeout=DEADLINE)


def test_a_host_with_little_shared_memory_is_refused(configure: Configure) -> None:
    config, _ = configure("store", f"serve.object_store_bytes={2**60}", **SERVE)
    check_host(config, starts_cluster=False)
    with pytest.raises(ConfigError, match=r"serve\.object_store_bytes \(1099511627776 MiB\) do not fit"):
        check_host(config, starts_cluster=True)


def test_a_transport_of_one_host_is_refused_on_several(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    config, directory = configure("spread", **{**SERVE, "transport": {"name": "shm"}})
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True}, {"Alive": False}, {"Alive": True}])
    with pytest.raises(ConfigError, match="'shm' serves one host, the cluster has 2 nodes"):
        preflight(config, config.plan(), "cpu", directory.path)

"""What a sitting of a run that was killed has published is offered to nobody of the next one."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from relax_core.api.weights import Publication, WeightSync
from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.config.load import RunConfig, load_run
from relax_core.runtimes.local import LocalRun
from relax_core.weights.client import ADDRESS, newest_of

PUBLISHES = """
import asyncio, os, signal, sys, torch
from pathlib import Path
from relax_core.api.context import Context
from relax_core.api.weights import Manifest, Publication
from relax_core.config.load import load_run
from relax_core.runtimes.publishing import make_publisher, open_service
from relax_core.weights.manifest import buckets, describe

class Trainer:
    def publish(self, version):
        tensors = {"a": torch.arange(10.0)}
        return Publication(Manifest(version, describe(tensors)), buckets(tensors))

async def main():
    directory = Path(sys.argv[1])
    config = load_run(directory / "config.yaml", [])
    sync = config.weight_sync.build(Context(directory.name, 0, directory))
    publisher = make_publisher(config, {}, sync, lambda name, amount: None, None)
    open_service(config, publisher, directory)
    publisher.go_on_from(10)
    await publisher.publish(Trainer())
    assert publisher.newest().manifest.version == 11
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


class Sitting(LocalRun):
    """Looks at what its engines would find, where they would be started."""

    offered: Publication | None
    is_offered_over_http: bool

    async def _stages(self, path: Path) -> None:
        sync: WeightSync = self.config.weight_sync.build(self.context)
        self.offered = sync.newest()
        self.is_offered_over_http = (self.directory.path / ADDRESS).exists()


@pytest.fixture
def killed(tmp_path: Path, tiny_model_path: Path) -> Any:
    """``killed(weight_sync)``: configuration and folder of a run that was killed after it had published."""

    def start(weight_sync: Any) -> tuple[RunConfig, RunDirectory]:
        settings = {
            "updates": 1,
            "model": {"path": str(tiny_model_path)},
            "dataset": {"name": "generated"},
            "reward": "exact",
            "weight_sync": weight_sync,
            "publication": {"service": True},
        }
        config = load_run(None, [], settings)
        directory = RunDirectory.create(tmp_path / "runs", "run", config.resolved(), 0)
        ended = subprocess.run([sys.executable, "-c", PUBLISHES, str(directory.path)], check=False, timeout=60)
        assert ended.returncode == -9
        assert (directory.path / ADDRESS).exists()
        return config, directory

    return start


@pytest.mark.parametrize("name", ["disk", "shm", "collective"])
async def test_a_sitting_begins_without_what_the_one_before_had_published(killed: Any, name: str) -> None:
    config, directory = killed(name)
    sitting = Sitting(config, directory, None)
    await sitting.run()
    assert sitting.offered is None
    assert not sitting.is_offered_over_http


async def test_publications_in_a_folder_of_their_own_go_too(killed: Any, tmp_path: Path) -> None:
    config, directory = killed({"name": "disk", "directory": str(tmp_path / "elsewhere")})
    assert list((tmp_path / "elsewhere").glob("relax-run-*/version-*"))
    await Sitting(config, directory, None).run()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_of_a_killed_process_the_service_is_gone(killed: Any) -> None:
    _, directory = killed("collective")
    assert newest_of(directory.path) is None

"""The weight sync through files keeps the contract, and keeps what somebody may still need."""

import pickle
import shutil
from pathlib import Path

import pytest
import torch

from relax_core.api.context import Context, ModelSource
from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import WeightSync
from relax_core.testing.publications import Taker, perturbed, publication_of, with_fault
from relax_core.testing.weight_sync import EnginesFactory, WeightSyncContract, deliver
from relax_core.weight_syncs.disk.config import DiskWeightSyncConfig
from relax_core.weight_syncs.disk.publications import RECORD, kept, store
from relax_core.weight_syncs.disk.sync import DiskWeightSync


def context(path: Path) -> Context:
    return Context("test", 0, path, ModelSource(path))


@pytest.fixture
def weight_sync(tmp_path: Path) -> WeightSync:
    return DiskWeightSync(DiskWeightSyncConfig(), context(tmp_path))


class TestDiskWeightSync(WeightSyncContract):
    @pytest.fixture
    def weight_sync(self, weight_sync: WeightSync) -> WeightSync:
        return weight_sync

    @pytest.fixture
    def successor(self, tmp_path: Path) -> WeightSync:
        return DiskWeightSync(DiskWeightSyncConfig(), context(tmp_path))

    @pytest.fixture
    def engines_factory(self, engines_factory: EnginesFactory) -> EnginesFactory:
        return engines_factory


async def test_a_late_engine_reads_the_newest_publication_and_no_other_is_kept(
    engines_factory: EnginesFactory, tiny_model_path: Path, tmp_path: Path
) -> None:
    sync = DiskWeightSync(DiskWeightSyncConfig(directory=tmp_path), context(tmp_path / "run"))
    first, late = await engines_factory(tiny_model_path, 2)
    assert sync.newest() is None
    for version in (1, 2):
        await deliver(sync, publication_of(perturbed(tiny_model_path, version), version), [first])
    assert sorted(path.name for path in sync.directory.iterdir()) == [RECORD, "version-00000002"]
    stored = pickle.loads(pickle.dumps(sync.newest()))
    acknowledgement = await late.update(stored.manifest, stored.buckets)
    assert (acknowledgement.version, (await late.health()).version) == (2, 2)
    await sync.close()
    assert not list(tmp_path.iterdir())


async def test_the_last_good_publication_survives_a_refused_one(
    weight_sync: WeightSync, engines_factory: EnginesFactory, tiny_model_path: Path, tmp_path: Path
) -> None:
    engines = await engines_factory(tiny_model_path, 1)
    await deliver(weight_sync, publication_of(perturbed(tiny_model_path, 1), 1), engines)
    broken = with_fault(publication_of(perturbed(tiny_model_path, 2), 2), "model.norm.weight", "checksum")
    with pytest.raises(WeightSyncError):
        await deliver(weight_sync, broken, engines)
    assert (tmp_path / "publications" / "version-00000001").is_dir()


async def test_what_a_kill_leaves_is_no_publication(
    weight_sync: WeightSync, tiny_model_path: Path, tmp_path: Path
) -> None:
    """Neither half of a folder nor a whole one that nobody has acknowledged; both go with the next publication."""
    await deliver(weight_sync, publication_of(perturbed(tiny_model_path, 1), 1), [Taker()])
    folder = tmp_path / "publications"
    (acknowledged,) = kept(folder)
    store(publication_of(perturbed(tiny_model_path, 2), 2), folder)
    shutil.copytree(folder / "version-00000002", folder / ".version-00000003.partial-1")
    assert kept(folder) == [acknowledged]
    await deliver(weight_sync, publication_of(perturbed(tiny_model_path, 3), 3), [Taker()])
    assert sorted(path.name for path in folder.iterdir()) == [RECORD, "version-00000003"]


def test_tensors_that_share_memory_are_stored_apart(tmp_path: Path) -> None:
    network = torch.nn.Linear(2, 2, bias=False)
    publication = with_fault(publication_of(network, 3), "weight", "unknown")
    stored = store(publication, tmp_path)
    (bucket,) = stored
    assert torch.equal(bucket["weight"], bucket["weight.more"])


async def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sync = DiskWeightSync(DiskWeightSyncConfig(directory=tmp_path / "file"), context(tmp_path))
    with pytest.raises(WeightSyncError, match=rf"version 1 cannot be written to '{tmp_path}/file/relax-test-\w+'"):
        await sync.stage(publication_of(torch.nn.Linear(2, 2), 1))
    await sync.close()


async def test_runs_of_one_name_do_not_meet(tmp_path: Path) -> None:
    config = DiskWeightSyncConfig(directory=tmp_path / "shared")
    one, other = (DiskWeightSync(config, context(tmp_path / name)) for name in ("a", "b"))
    await deliver(one, publication_of(torch.nn.Linear(2, 2), 1), [Taker()])
    assert other.newest() is None
    await other.close()
    newest = one.newest()
    assert newest is not None and newest.manifest.version == 1
